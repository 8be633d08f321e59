// A TCP relay that makes a broker far away: it delivers every byte a fixed time after it was read, in order, in each direction.
//
//	relay -delay-ms 40
//
// It prints the port that it listens on, reads the address to connect to from standard input ("host:port" and a line end), then
// new delays in milliseconds, a line each, for what is read from then on, and ends when standard input ends, so that it does not
// outlive the program that started it. It has no bandwidth limit of its own
// but the buffer: at most -buffer-mb are under way per direction of a connection, and they take memory while they are. SIGUSR1
// stops all deliveries for -stall-s. The kernel accepts connections at once; therefore the first bytes of a client are read
// only when a real connection of this distance would have been established.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	blockBytes   = 256 << 10
	leastRead    = 16 << 10 // a block with less space than this is not read into any more
	chunksAtOnce = 1 << 14  // under way per direction, as small ones take little of the buffer
)

var (
	delayMs  = flag.Float64("delay-ms", 0, "time from reading a byte to delivering it, until another is set")
	bufferMb = flag.Int("buffer-mb", 256, "most bytes under way in one direction of a connection, in 2^20")
	stallS   = flag.Float64("stall-s", 10, "time for which SIGUSR1 stops all deliveries")
)

var (
	blocks       = sync.Pool{New: func() any { return new([blockBytes]byte) }}
	stalledUntil atomic.Int64 // nanoseconds since the epoch
	delayNs      atomic.Int64
)

// chunk is what one read returned. The last chunk of a block holds it, and gives it back.
type chunk struct {
	due   time.Time
	data  []byte
	block *[blockBytes]byte
}

func main() {
	flag.Parse()
	setDelay(*delayMs)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	input := bufio.NewReader(os.Stdin)
	target, err := input.ReadString('\n')
	check(err)
	go stallOnSignal()
	go serve(listener, strings.TrimSpace(target))
	for lines := bufio.NewScanner(input); lines.Scan(); {
		ms, err := strconv.ParseFloat(lines.Text(), 64)
		check(err)
		setDelay(ms)
		fmt.Println(lines.Text())
	}
}

func setDelay(ms float64) { delayNs.Store(int64(duration(ms, time.Millisecond))) }

func stallOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	for range signals {
		stalledUntil.Store(time.Now().Add(duration(*stallS, time.Second)).UnixNano())
	}
}

func serve(listener net.Listener, target string) {
	for {
		client, err := listener.Accept()
		check(err)
		go join(client.(*net.TCPConn), target)
	}
}

// join connects to the target and returns when both directions have ended. The end of one side's stream is delivered as late as
// its bytes, to the other side only; an error ends both.
func join(client *net.TCPConn, target string) {
	defer client.Close()
	dialed, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	broker := dialed.(*net.TCPConn)
	defer broker.Close()
	time.Sleep(2 * delay())
	var both sync.WaitGroup
	both.Add(2)
	go func() { defer both.Done(); forward(client, broker) }()
	go func() { defer both.Done(); forward(broker, client) }()
	both.Wait()
}

func forward(from, to *net.TCPConn) {
	buffer := make(chan struct{}, max(1, *bufferMb<<20/blockBytes))
	chunks := make(chan chunk, chunksAtOnce)
	go read(from, chunks, buffer)
	if deliver(to, chunks, buffer) != nil {
		from.Close()
		to.Close()
		for left := range chunks {
			give(left, buffer)
		}
	}
}

// read takes a place in the buffer per block, and fills each block by several reads.
func read(from io.Reader, chunks chan<- chunk, buffer chan<- struct{}) {
	defer close(chunks)
	for {
		buffer <- struct{}{}
		block := blocks.Get().(*[blockBytes]byte)
		for free := block[:]; len(free) >= leastRead; {
			n, err := from.Read(free)
			one := chunk{due: time.Now().Add(delay()), data: free[:n]}
			free = free[n:]
			if err != nil || len(free) < leastRead {
				one.block = block
			}
			chunks <- one
			if err != nil {
				return
			}
		}
	}
}

func deliver(to *net.TCPConn, chunks <-chan chunk, buffer <-chan struct{}) error {
	for one := range chunks {
		time.Sleep(time.Until(one.due))
		time.Sleep(time.Until(time.Unix(0, stalledUntil.Load())))
		_, err := to.Write(one.data)
		give(one, buffer)
		if err != nil {
			return err
		}
	}
	return to.CloseWrite()
}

func give(one chunk, buffer <-chan struct{}) {
	if one.block != nil {
		blocks.Put(one.block)
		<-buffer
	}
}

func delay() time.Duration { return time.Duration(delayNs.Load()) }

func duration(number float64, unit time.Duration) time.Duration {
	return time.Duration(number * float64(unit))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
