// Reads a topic with sarama: BOOTSTRAP TOPIC START COUNT.
package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

const quiet = 3 * time.Second

func main() {
	printVersion()
	start, err := strconv.ParseInt(os.Args[3], 10, 64)
	check(err)
	left, err := strconv.Atoi(os.Args[4])
	check(err)
	config := sarama.NewConfig()
	config.Consumer.Return.Errors = true
	consumer, err := sarama.NewConsumer([]string{os.Args[1]}, config)
	check(err)
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(os.Args[2], 0, start)
	check(err)
	var ended <-chan time.Time
	for {
		select {
		case message := <-partition.Messages():
			value := "null"
			if message.Value != nil {
				value = string(message.Value)
			}
			fmt.Printf("record\t%d\t%s\n", message.Offset, value)
			left--
			if left == 0 {
				ended = time.After(quiet)
			}
		case failed := <-partition.Errors():
			check(failed)
		case <-ended:
			return
		}
	}
}

func printVersion() {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/IBM/sarama" {
			fmt.Printf("version\t%s\n", module.Version)
		}
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
