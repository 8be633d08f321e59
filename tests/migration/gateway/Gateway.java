// Runs Kroxylicious with a configuration file until it is stopped: its runtime is on Maven Central, its application is not.

import io.kroxylicious.proxy.KafkaProxy;
import io.kroxylicious.proxy.config.ConfigParser;
import io.kroxylicious.proxy.config.Configuration;
import io.kroxylicious.proxy.internal.config.Features;
import java.nio.file.Files;
import java.nio.file.Path;

class Gateway {
    public static void main(String[] arguments) throws Exception {
        ConfigParser parser = new ConfigParser();
        Configuration configuration = parser.parseConfiguration(Files.readString(Path.of(arguments[0])));
        KafkaProxy proxy = new KafkaProxy(parser, configuration, Features.defaultFeatures());
        Runtime.getRuntime().addShutdownHook(new Thread(proxy::shutdown));
        proxy.startup();
        System.out.println("the gateway is open");
        proxy.block();
    }
}
