// A loop as one writes it with franz-go: poll, produce each record again, until every end.
//
//	franz_go '{"source": …, "target": …, "source_topic": …, "target_topic": …, "ends": {"0": 123}, "codec": "zstd"}'
//
// With "ca", a PEM file, both connections are TLS. Idempotent, without transactions. Records, and what they are decompressed
// into, are pooled. Every setting is in this file but GOGC, which the peer sets.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	batchBytes        = 1_000_000
	linger            = 50 * time.Millisecond
	fetchBytes        = 16 << 20
	partitionBytes    = 4 << 20
	recordsAtOnce     = 10_000
	bufferedBytes     = 64 << 20
	bufferedRecords   = 1_000_000
	usualRatio        = 4
	concurrentFetches = 2
)

type job struct {
	Source      string          `json:"source"`
	Target      string          `json:"target"`
	SourceTopic string          `json:"source_topic"`
	TargetTopic string          `json:"target_topic"`
	Ends        map[int32]int64 `json:"ends"`
	Codec       string          `json:"codec"`
	Ca          string          `json:"ca"`
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func main() {
	var j job
	check(json.Unmarshal([]byte(os.Args[1]), &j))
	consumer, producer := newConsumer(j), newProducer(j)
	defer producer.Close()
	defer consumer.Close()
	copyAll(j, consumer, producer)
	check(producer.Flush(context.Background()))
	check(failure())
}

func newConsumer(j job) *kgo.Client {
	starts := map[int32]kgo.Offset{}
	for partition := range j.Ends {
		starts[partition] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(
		security(j),
		kgo.SeedBrokers(j.Source),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{j.SourceTopic: starts}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.FetchMaxBytes(fetchBytes),
		kgo.FetchMaxPartitionBytes(partitionBytes),
		kgo.MaxConcurrentFetches(concurrentFetches),
		kgo.WithPools(&pools{}),
	)
	check(err)
	return client
}

func newProducer(j job) *kgo.Client {
	client, err := kgo.NewClient(
		security(j),
		kgo.SeedBrokers(j.Target),
		kgo.DefaultProduceTopic(j.TargetTopic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[j.Codec]),
		kgo.ProducerBatchMaxBytes(batchBytes),
		kgo.ProducerLinger(linger),
		kgo.MaxBufferedBytes(bufferedBytes),
		kgo.MaxBufferedRecords(bufferedRecords),
	)
	check(err)
	return client
}

// security trusts the CA alone, and checks the host name; without a CA there is no TLS.
func security(j job) kgo.Opt {
	if j.Ca == "" {
		return kgo.DialTLSConfig(nil)
	}
	pem, err := os.ReadFile(j.Ca)
	check(err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		check(errors.New("no certificate in " + j.Ca))
	}
	return kgo.DialTLSConfig(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13})
}

// copyAll returns when every partition was read to its end; transaction markers are records here, so that one which ends
// with them is seen to end.
func copyAll(j job, consumer, producer *kgo.Client) {
	ctx := context.Background()
	left := 0
	for _, end := range j.Ends {
		if end > 0 {
			left++
		}
	}
	for left > 0 {
		fetches := consumer.PollRecords(ctx, recordsAtOnce)
		for _, one := range fetches.Errors() {
			check(one.Err)
		}
		check(failure())
		fetches.EachRecord(func(record *kgo.Record) {
			if record.Offset == j.Ends[record.Partition]-1 {
				left--
			}
			if record.Attrs.IsControl() {
				record.Recycle()
				return
			}
			producer.Produce(ctx, &kgo.Record{
				Key:       record.Key,
				Value:     record.Value,
				Headers:   record.Headers,
				Timestamp: record.Timestamp,
				Partition: record.Partition,
			}, func(_ *kgo.Record, err error) {
				record.Recycle()
				if err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			})
		})
	}
}

var failed atomic.Pointer[error]

func failure() error {
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// pools keeps what the consumer decompresses into, and its records, for the next fetch.
type pools struct {
	blocks, records sync.Pool
}

func (p *pools) GetDecompressBytes(compressed []byte, _ kgo.CompressionCodecType) []byte {
	if block, ok := p.blocks.Get().(*[]byte); ok {
		return (*block)[:0]
	}
	return make([]byte, 0, usualRatio*len(compressed))
}

func (p *pools) PutDecompressBytes(block []byte) { p.blocks.Put(&block) }

func (p *pools) GetRecords(n int) []kgo.Record {
	if records, ok := p.records.Get().(*[]kgo.Record); ok && cap(*records) >= n {
		return (*records)[:n]
	}
	return make([]kgo.Record, n)
}

func (p *pools) PutRecords(records []kgo.Record) { p.records.Put(&records) }

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
