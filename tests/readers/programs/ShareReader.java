// Reads a topic with the Java share consumer, from its earliest offset on: BOOTSTRAP TOPIC START COUNT. START is ignored.

import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ShareReader {
    private static final long QUIET_NS = 3_000_000_000L;

    public static void main(String[] arguments) throws Exception {
        System.out.println("version\t" + version());
        String group = "share-of-" + arguments[1];
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "group.id", group);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", (Object) arguments[0]))) {
            var earliest = new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
            var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(earliest))).all().get();
        }
        long left = Long.parseLong(arguments[3]);
        long complete = 0;
        try (var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[1]));
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
        try (var file = KafkaShareConsumer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            properties.load(file);
        }
        return properties.getProperty("version");
    }
}
