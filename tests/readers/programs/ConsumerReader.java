// Reads a topic with the Java consumer: BOOTSTRAP TOPIC START COUNT.

import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ConsumerReader {
    private static final long QUIET_NS = 3_000_000_000L;

    public static void main(String[] arguments) throws IOException {
        System.out.println("version\t" + version());
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "enable.auto.commit", "false");
        TopicPartition partition = new TopicPartition(arguments[1], 0);
        long left = Long.parseLong(arguments[3]);
        long complete = 0;
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, Long.parseLong(arguments[2]));
            while (left > 0 || System.nanoTime() - complete < QUIET_NS) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println("record\t" + record.offset() + "\t" + record.value());
                    if (--left == 0) {
                        complete = System.nanoTime();
                    }
                }
            }
        }
    }

    /** Of the client. Its class for that, AppInfoParser, moved to an internal package in 4.4.0. */
    private static String version() throws IOException {
        var properties = new Properties();
        try (var file = KafkaConsumer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            properties.load(file);
        }
        return properties.getProperty("version");
    }
}
