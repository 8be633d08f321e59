// Reads a topic with franz-go: BOOTSTRAP TOPIC START COUNT.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const quiet = 3 * time.Second

func main() {
	printVersion()
	start, err := strconv.ParseInt(os.Args[3], 10, 64)
	check(err)
	left, err := strconv.Atoi(os.Args[4])
	check(err)
	offsets := map[string]map[int32]kgo.Offset{os.Args[2]: {0: kgo.NewOffset().At(start)}}
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.ConsumePartitions(offsets))
	check(err)
	defer client.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		for _, failed := range fetches.Errors() {
			if !errors.Is(failed.Err, context.Canceled) {
				check(failed.Err)
			}
		}
		fetches.EachRecord(func(record *kgo.Record) {
			value := "null"
			if record.Value != nil {
				value = string(record.Value)
			}
			fmt.Printf("record\t%d\t%s\n", record.Offset, value)
			left--
			if left == 0 {
				time.AfterFunc(quiet, cancel)
			}
		})
	}
}

func printVersion() {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/twmb/franz-go" {
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
