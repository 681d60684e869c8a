package hermes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// probeLimit is ample for a Python that answers at all; a stub that waits for a terminal never does.
const probeLimit = 20 * time.Second

const probe = `import importlib.util, json, sys
print(json.dumps({"executable": sys.executable, "version": list(sys.version_info[:3]),
    "implementation": sys.implementation.name,
    "venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))}))`

// interpreter is what a Python says about itself.
type interpreter struct {
	Executable     string `json:"executable"` // itself, where the name tried was a wrapper
	Version        []int  `json:"version"`
	Implementation string `json:"implementation"`
	Venv           bool   `json:"venv"` // it can make environments with pip in them
}

// findPython returns the path of a Python to make the environment with.
func findPython(ctx context.Context, configured string) (string, error) {
	names := []string{"python3.13", "python3.12", "python3.11", "python3"}
	if configured != "" {
		names = []string{configured}
	}
	failure := &ErrPython{}
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			if configured != "" {
				failure.Found = append(failure.Found, err.Error())
			}
			continue
		}
		python, err := ask(ctx, path)
		if ctx.Err() != nil {
			return "", fmt.Errorf("look for Python: %w", context.Cause(ctx))
		}
		if err != nil {
			failure.Found = append(failure.Found, fmt.Sprintf("%s, which %v", path, err))
			continue
		}
		right, fault := python.usable()
		if right && python.Venv {
			return python.Executable, nil
		}
		if right {
			failure.NeedsVenv = true
			fault += " without the modules venv and ensurepip"
		}
		failure.Found = append(failure.Found, path+" is "+fault)
	}
	return "", failure
}

// ask runs the probe in a Python.
func ask(ctx context.Context, path string) (*interpreter, error) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-I", "-c", probe)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			first, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
			return nil, fmt.Errorf("does not run: %s", abbreviate(first))
		}
		return nil, fmt.Errorf("does not run: %w", err)
	}
	var python interpreter
	if err := json.Unmarshal(out, &python); err != nil || len(python.Version) != 3 || python.Executable == "" {
		return nil, fmt.Errorf("answers %s", abbreviate(fmt.Sprintf("%q", out)))
	}
	return &python, nil
}

// usable says whether the packages of the lock exist for this Python, and names it.
func (p *interpreter) usable() (ok bool, name string) {
	name = fmt.Sprintf("%s %d.%d.%d", p.Implementation, p.Version[0], p.Version[1], p.Version[2])
	return p.Implementation == "cpython" && p.Version[0] == 3 && p.Version[1] >= 11 && p.Version[1] <= 13, name
}
