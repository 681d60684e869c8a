package interop

import (
	"bytes"
	"context"
	_ "embed" // the scripts
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Environment variables that name the SDKs. `make test`, `make evidence` and `make bench` set them.
const (
	// PythonVariable is an interpreter with agentfs_sdk.
	PythonVariable = "HUMANWORK_TEST_AGENTFS_PYTHON"
	// NodeVariable is a directory with bin/node and node_modules.
	NodeVariable = "HUMANWORK_TEST_AGENTFS_NODE"
)

var (
	//go:embed python/sdk.py
	pythonScript string
	//go:embed node/sdk.mjs
	nodeScript string
)

// Environment is where the SDKs are.
type Environment struct{ Python, Node string }

// FromEnvironment returns what the environment variables name.
func FromEnvironment() (Environment, error) {
	env := Environment{Python: os.Getenv(PythonVariable), Node: os.Getenv(NodeVariable)}
	if env.Python == "" || env.Node == "" {
		return env, fmt.Errorf("%s and %s are not set: run with `make test`, `make evidence` or `make bench`", PythonVariable, NodeVariable)
	}
	return env, nil
}

// SDK is an official SDK; View and Change run it in a process of its own.
type SDK struct {
	Name string
	// Symlinks says that it can make symbolic links, Handles that it can open files and write into them.
	Symlinks, Handles bool

	program string
	args    []string
	dir     string
}

// PythonSDK is the one from PyPI.
func (e Environment) PythonSDK() SDK {
	return SDK{Name: "Python", program: e.Python, args: []string{"-I", "-c", pythonScript}}
}

// TypeScriptSDK is the one from npm.
func (e Environment) TypeScriptSDK() SDK {
	// A script without a file finds packages from the working directory.
	return SDK{Name: "TypeScript", Symlinks: true, Handles: true, program: filepath.Join(e.Node, "bin", "node"),
		args: []string{"--input-type=module", "--eval", nodeScript}, dir: e.Node}
}

// SDKs are both.
func (e Environment) SDKs() []SDK { return []SDK{e.PythonSDK(), e.TypeScriptSDK()} }

// View returns what the SDK sees in a database. Reading sets times of access in it.
func (s SDK) View(ctx context.Context, file string) (Tree, error) {
	var t Tree
	out, err := s.run(ctx, nil, "view", file)
	if err != nil {
		return t, fmt.Errorf("the %s SDK reads: %w", s.Name, err)
	}
	if err := json.Unmarshal(out, &t); err != nil {
		return t, fmt.Errorf("the %s SDK reads: %w", s.Name, err)
	}
	return t, nil
}

// Change makes the SDK do operations on a database, which it makes if there is none.
func (s SDK) Change(ctx context.Context, file string, operations []Operation) error {
	in, err := json.Marshal(operations)
	if err != nil {
		return fmt.Errorf("encode the operations: %w", err)
	}
	if _, err := s.run(ctx, in, "change", file); err != nil {
		return fmt.Errorf("the %s SDK writes: %w", s.Name, err)
	}
	return nil
}

// Command is the SDK's script with a command, to be run with lines on its standard input.
func (s SDK) Command(command, file string) (*exec.Cmd, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(s.program, append(append([]string{}, s.args...), command, file)...) //nolint:noctx // the caller ends it
	cmd.Dir = s.dir
	return cmd, nil
}

func (s SDK) run(ctx context.Context, in []byte, command, file string) ([]byte, error) {
	cmd, err := s.Command(command, file)
	if err != nil {
		return nil, err
	}
	var out, fault bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &fault
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() }) // it ended already, or Wait tells
	err = cmd.Wait()
	if !stop() {
		return nil, errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, tail(fault.Bytes()))
	}
	return out.Bytes(), nil
}

// tail keeps what says why: both interpreters print that last.
func tail(b []byte) []byte {
	const most = 2000
	return b[max(0, len(b)-most):]
}
