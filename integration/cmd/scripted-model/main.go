// Command scripted-model serves the scripted demo model as a process of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"humanwork.internal/integration/scriptedmodel"
)

const usage = `Serves an OpenAI-compatible model that follows fixed rules: no real language model is behind it.
It prints its base URL, then serves until SIGINT or SIGTERM.

What a user's text does when it starts with one of these:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "scripted-model:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	var cfg scriptedmodel.Config
	flags := flag.NewFlagSet("scripted-model", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "127.0.0.1:0", "address to listen on; port 0 chooses a free one")
	record := flags.String("record", "", "file to append every request to, one JSON object a line")
	flags.BoolVar(&cfg.Control, "control", false, "serve /_control/, which shows every request and has no authentication")
	flags.StringVar(&cfg.ModelName, "model", scriptedmodel.DefaultModelName, "name of the model")
	flags.Int64Var(&cfg.ContextLength, "context-length", scriptedmodel.DefaultContextLength, "context size to report, in tokens")
	flags.Int64Var(&cfg.RecordBytes, "record-bytes", scriptedmodel.DefaultRecordBytes, "memory for recorded requests, in bytes")
	flags.Usage = func() {
		fmt.Fprint(stderr, usage, scriptedmodel.DirectiveHelp, "\nFlags:\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if cfg.ContextLength < 1 || cfg.RecordBytes < 1 {
		return errors.New("--context-length and --record-bytes must be above 0")
	}
	if *record != "" {
		f, err := os.OpenFile(*record, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return fmt.Errorf("open record file: %w", err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		cfg.RecordTo = f // unbuffered: a line is in the file before its request is answered
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", *addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Fprintf(stdout, "http://%s/v1\n", l.Addr())
	return scriptedmodel.New(cfg).Serve(ctx, l)
}
