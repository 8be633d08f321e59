import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.connect.mirror.Heartbeat;
import org.apache.kafka.connect.mirror.MirrorClient;

/** Prints the first heartbeat of a cluster and the clusters from which it is fed, as MirrorMaker 2's own classes read them. */
public class HeartbeatReader {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0]);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes);
             MirrorClient client = new MirrorClient(settings)) {
            TopicPartition heartbeats = new TopicPartition("heartbeats", 0);
            consumer.assign(List.of(heartbeats));
            consumer.seekToBeginning(List.of(heartbeats));
            ConsumerRecord<byte[], byte[]> record = null;
            while (record == null) {
                for (ConsumerRecord<byte[], byte[]> next : consumer.poll(Duration.ofSeconds(1))) {
                    record = record == null ? next : record;
                }
            }
            Heartbeat heartbeat = Heartbeat.deserializeRecord(record);
            System.out.println(heartbeat.sourceClusterAlias() + " " + heartbeat.targetClusterAlias() + " "
                + heartbeat.timestamp() + " " + record.timestamp());
            System.out.println(client.upstreamClusters());
        }
    }
}
