// Command granary is a sharded document database in one binary: every role, and every tool
// that looks at a store.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done in part (fsck found problems, repair gave something up),
// 128 and its number after a second signal.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // windows of the balancer name time zones, also where the machine knows none

	"github.com/urfave/cli/v3"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	obey(stop)
	alone = true
	if err := app().Run(ctx, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "granary:", err)
		os.Exit(exitCode(err))
	}
}

// obey has the first signal to stop end what is under way in good order, and the second one end the
// process at once. Neither gets lost, however soon after the other it comes.
func obey(stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		status := 1
		if s, ok := (<-signals).(syscall.Signal); ok {
			status = 128 + int(s) // as a shell reports a process that a signal ended
		}
		os.Exit(status)
	}()
}

// app is the whole command line.
func app() *cli.Command {
	root := &cli.Command{
		Name:  "granary",
		Usage: "a sharded document database whose only server is your bucket",
		Description: `Start here:

   granary local                  run everything in one process, data in ./granary-data
   mongosh mongodb://127.0.0.1    connect to it

As separate processes, on one store: granary writer holds shards, granary router serves.

Every flag can be set by an environment variable: --store is GRANARY_STORE, and so on.`,
		Version:               version(),
		HideVersion:           true,
		EnableShellCompletion: true,
		ExitErrHandler:        func(context.Context, *cli.Command, error) {}, // main says it
		ArgValidator:          noArguments,
		OnUsageError:          wrongUsage,
		Commands: []*cli.Command{
			localCommand(), writerCommand(), routerCommand(), balancerCommand(), compactCommand(), initCommand(), statusCommand(),
			findCommand(), exportCommand(),
			splitCommand(), moveCommand(), mergeCommand(), dropRangeCommand(), reshardCommand(), drainCommand(), zonesCommand(), gcCommand(),
			fsckCommand(), scrubCommand(), repairCommand(), doctorCommand(), snapshotCommand(), historyCommand(), undropCommand(), backupCommand(),
			restoreCommand(), versionCommand(),
		},
	}
	for _, c := range root.Commands {
		c.OnUsageError = wrongUsage // not inherited
	}
	return root
}

// wrongUsage says where to look, in place of pages of help.
func wrongUsage(_ context.Context, cmd *cli.Command, err error, _ bool) error {
	if cmd.Root() == cmd {
		return usage("%v: flags follow the command: granary help shows how", err)
	}
	return usage("%v: granary help %s shows what it takes", err, cmd.Name)
}

// noArguments refuses words that no command would read: whoever types granary fsck ./data
// must not be told that ./granary-data is clean.
func noArguments(_ context.Context, cmd *cli.Command) error {
	name := cmd.Args().First()
	switch {
	case name == "" || cmd.Name == "completion" || cmd.Name == "help" && cmd.Root().Command(name) != nil:
		return nil
	case cmd.Root() == cmd || cmd.Name == "help":
		return usage("no command %q: granary help lists them", name)
	}
	return usage("%s takes flags only, and was given %q: granary help %s shows them", cmd.Name, name, cmd.Name)
}

// Exit codes.
const (
	codeFailed  = 1
	codeUsage   = 2
	codePartial = 3
)

// coded is an error with an exit code of its own.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

func usage(format string, args ...any) error {
	return coded{fmt.Errorf(format, args...), codeUsage}
}

func exitCode(err error) int {
	var c coded
	if errors.As(err, &c) {
		return c.code
	}
	return codeFailed
}
