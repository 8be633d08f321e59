// Reads a topic with kafkajs: BOOTSTRAP TOPIC START COUNT.

const { Kafka, logLevel } = require("kafkajs");

const QUIET_MS = 3000;
const [bootstrap, topic, start, count] = process.argv.slice(2);

async function main() {
  console.log(`version\t${require("kafkajs/package.json").version}`);
  const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR });
  const consumer = kafka.consumer({ groupId: `reader-of-${topic}-${start}` });
  let left = Number(count);
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    console.error(String(payload.error));
    process.exit(1);
  });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ message }) => {
      console.log(`record\t${message.offset}\t${message.value === null ? "null" : message.value.toString()}`);
      left -= 1;
      if (left === 0) {
        setTimeout(() => process.exit(0), QUIET_MS);
      }
    },
  });
  consumer.seek({ topic, partition: 0, offset: start });
}

main().catch((error) => {
  console.error(String(error));
  process.exit(1);
});
