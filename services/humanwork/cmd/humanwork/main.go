// Command humanwork runs the whole system for development (`humanwork run`, `humanwork demo`) and
// works with the files of a running one (`humanwork fs`).
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"humanwork.internal/services/humanwork"
	"humanwork.internal/services/humanwork/internal/fscli"
)

func main() {
	humanwork.Hook()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // a second signal kills
	}()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "humanwork: %v\n", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "humanwork",
		Short:         "Real Hermes agents behind a product's API",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(runCommand(), demoCommand(), fscli.Command(), setupCommand(), testenvCommand())
	return root
}

// progress shows what a person waits for, apart from the output proper.
func progress(line string) { fmt.Fprintln(os.Stderr, "  "+line) }

// load reads the settings of a command that declared their flags.
func load(cmd *cobra.Command) (humanwork.Settings, error) {
	return humanwork.LoadSettings(cmd.Flags(), os.LookupEnv)
}
