// Reads ranges of partitions with the Java consumer, as lines of standard input request it:
// BOOTSTRAP, isolation level, then TOPIC:PARTITION:START:END for each range, separated by tabs.
// Prints a line per record (topic, partition, offset and a digest of all its fields), and `end` after each request.

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class RangeReader {
    private static final long SILENCE_NS = 60_000_000_000L;

    public static void main(String[] arguments) throws Exception {
        var out = new PrintWriter(new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8)));
        out.println("version\t" + version());
        out.flush();
        var requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String request = requests.readLine(); request != null; request = requests.readLine()) {
            read(request.split("\t"), out);
            out.println("end");
            out.flush();
        }
    }

    private static void read(String[] request, PrintWriter out) throws Exception {
        Map<TopicPartition, Long> starts = new HashMap<>();
        Map<TopicPartition, Long> ends = new HashMap<>();
        for (int i = 2; i < request.length; i++) {
            String[] range = request[i].split(":");
            var partition = new TopicPartition(range[0], Integer.parseInt(range[1]));
            starts.put(partition, Long.parseLong(range[2]));
            ends.put(partition, Long.parseLong(range[3]));
        }
        Map<String, Object> settings =
            Map.of(
                "bootstrap.servers", request[0],
                "isolation.level", request[1],
                "enable.auto.commit", "false",
                "auto.offset.reset", "none");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(ends.keySet());
            starts.forEach(consumer::seek);
            Map<TopicPartition, Long> positions = new HashMap<>(starts);
            long moved = System.nanoTime();
            while (!ends.isEmpty()) {
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    Long end = ends.get(new TopicPartition(record.topic(), record.partition()));
                    if (end != null && record.offset() < end) {
                        print(record, out);
                    }
                }
                for (TopicPartition partition : consumer.assignment()) {
                    if (positions.put(partition, consumer.position(partition)) != consumer.position(partition)) {
                        moved = System.nanoTime();
                    }
                }
                ends.entrySet().removeIf(range -> positions.get(range.getKey()) >= range.getValue());
                consumer.assign(ends.keySet());
                if (System.nanoTime() - moved > SILENCE_NS) {
                    throw new IllegalStateException("no progress for a minute; unread: " + ends + ", positions: " + positions);
                }
            }
        }
    }

    private static void print(ConsumerRecord<byte[], byte[]> record, PrintWriter out) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("MD5");
        var head = ByteBuffer.allocate(16).putInt(record.timestampType().id).putLong(record.timestamp());
        digest.update(head.putInt(record.headers().toArray().length).array());
        add(digest, record.key());
        add(digest, record.value());
        for (var header : record.headers()) {
            add(digest, header.key().getBytes(StandardCharsets.UTF_8));
            add(digest, header.value());
        }
        String cells = record.topic() + "\t" + record.partition() + "\t" + record.offset();
        out.println(cells + "\t" + HexFormat.of().formatHex(digest.digest()));
    }

    /** Adds a field with its length in front; null is not the empty field. */
    private static void add(MessageDigest digest, byte[] field) {
        digest.update(ByteBuffer.allocate(4).putInt(field == null ? -1 : field.length).array());
        if (field != null) {
            digest.update(field);
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
