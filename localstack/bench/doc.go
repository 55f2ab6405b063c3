// Package bench measures what Granary promises about speed, requests and memory, on the
// whole thing: a localstack.Stack on a store, its wire server on a loopback port, and the
// Go driver as the client. It holds tests and benchmarks only.
//
// # Counts are tests, times are benchmarks
//
// What an operation asks of the store is the same on every machine, so the TestRequests
// family asserts it, and go test fails when one request more is needed. Those tests run in
// a bubble of virtual time, in which the only requests are the ones that are meant.
//
// Times depend on the machine, so nothing asserts them. A benchmark measures what it is
// compared with in the same run, turn by turn, and reports the ratio:
//
//	go test ./localstack/bench -run '^$' -bench . -cpu 2 -benchtime 3s
//
//	Insert         documents/s through the wire, and the writer's share of it
//	FindOne        rate of findOne by _id over the rate of ping, the same clients
//	GroupCommit    documents that share one log object, when a PUT takes 30 ms
//	ChangesBySize  moves and splits of a large chunk over those of a small one (-chunk-mb 1024)
//	ManyChunks     each operation, change and background pass on a collection of 100,000 chunks
//	               (-chunks N), and what it writes
//	Writers        what a second and a fourth writer are worth, with the latency of S3
//
// The client runs in the same process on the same cores, so what it costs is in the times;
// the benchmarks say how much that is. They report processor time (cpu-µs) as well, which a
// busy machine disturbs less: two cores have 2,000,000 cpu-µs a second.
//
// # Memory
//
// TestMemoryStaysBounded loads the real binary, as a process, and reads from /proc what it
// took at most. The long form is a flag:
//
//	go test ./localstack/bench -run TestMemoryStaysBounded -load-gb 2
//
// # Overload
//
// TestOverload finds out how much the real binary can do on a store as slow as S3, and sends it
// four times as much over 1,500 connections: what it accepts must be answered about as fast as
// without load, the rest refused at once with an error that drivers retry, within its memory.
// Only a machine that does nothing else tells the truth about the times. The clients and the
// store share its processors with the process, and what they measure has their own waits in it:
// so it also says what the process measured itself, from the header of a message to its reply,
// and how long goroutines waited for a processor on either side. The long form:
//
//	go test ./localstack/bench -run TestOverload -v -overload 5m
//
// TestIdleConnectionsTakeLittle opens 1,980 connections that say nothing, or a byte a second.
//
// Nothing is kept: the stores are temporary directories, or memory.
package bench
