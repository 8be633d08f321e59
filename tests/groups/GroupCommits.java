import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Commits offsets of a group for partitions 0 to 2: plainly, in a transaction, and in one that it aborts. */
public class GroupCommits {
    public static void main(String[] arguments) {
        String topic = arguments[1], group = arguments[2];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", group);
        settings.put("enable.auto.commit", "false");
        settings.put("transactional.id", group);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        Properties consuming = (Properties) settings.clone();
        consuming.remove("transactional.id");
        Properties producing = (Properties) settings.clone();
        producing.remove("group.id");
        producing.remove("enable.auto.commit");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(consuming, bytes, bytes);
             KafkaProducer<byte[], byte[]> producer =
                 new KafkaProducer<>(producing, new ByteArraySerializer(), new ByteArraySerializer())) {
            consumer.assign(Set.of(new TopicPartition(topic, 0)));
            consumer.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(5, "plain")));
            producer.initTransactions();
            for (int partition : new int[] {1, 2}) {
                producer.beginTransaction();
                producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(topic, partition), new OffsetAndMetadata(6, "in a transaction")),
                    consumer.groupMetadata());
                if (partition == 1) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
    }
}
