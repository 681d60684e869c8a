package hermes

import (
	"fmt"
	"strings"
)

// ErrMissing says that a virtual environment lacks Hermes, or a part of it.
type ErrMissing struct {
	Venv string
	What string // what was looked for
	Err  error
}

func (e *ErrMissing) Error() string {
	return fmt.Sprintf("Hermes is not installed in %s (no %s): install it there with pip install '%s', or leave the setting of the virtual environment out to have one made: %v",
		e.Venv, e.What, requirement, e.Err)
}

func (e *ErrMissing) Unwrap() error { return e.Err }

// ErrVersion says that a virtual environment holds another version of Hermes than the one this program was made for.
type ErrVersion struct {
	Venv        string
	Found, Want string
}

func (e *ErrVersion) Error() string {
	return fmt.Sprintf("Hermes in %s has the version %s, and %s is needed: install that with pip install '%s', or leave the setting of the virtual environment out to have one made",
		e.Venv, e.Found, e.Want, requirement)
}

// ErrModified lists the files of Hermes that are not as they were published.
type ErrModified struct {
	Venv  string
	Files []string // below the environment's site-packages
}

func (e *ErrModified) Error() string {
	return fmt.Sprintf("%d files of Hermes in %s were changed or are missing (%s): remove that environment and have it made again",
		len(e.Files), e.Venv, abbreviate(strings.Join(e.Files, ", ")))
}

// ErrPython says that no usable Python was found.
type ErrPython struct {
	Found []string // each program that was tried, and what is wrong with it
	// NeedsVenv: the version is right, and the part that makes virtual environments is missing.
	NeedsVenv bool
}

func (e *ErrPython) Error() string {
	found := "found none"
	if len(e.Found) > 0 {
		found = "found " + strings.Join(e.Found, "; ")
	}
	if e.NeedsVenv {
		return fmt.Sprintf("Hermes needs a Python that can make virtual environments (%s): apt-get install python3-venv", found)
	}
	return fmt.Sprintf("Hermes needs Python 3.11, 3.12 or 3.13 (%s): apt-get install python3 python3-venv, or name a Python in the configuration", found)
}

// ErrInstall says that making the environment failed.
type ErrInstall struct {
	Step string
	Err  error
	Tail string // the last lines that were printed
}

func (e *ErrInstall) Error() string {
	return fmt.Sprintf("install Hermes: %s: %v; the next start tries again; the last lines were:\n%s", e.Step, e.Err, e.Tail)
}

func (e *ErrInstall) Unwrap() error { return e.Err }
