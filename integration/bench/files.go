package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"humanwork.internal/integration/harness"
	"humanwork.internal/integration/interop"
	"humanwork.internal/integration/scriptedmodel"
	"humanwork.internal/pkg/agentfs"
)

const (
	// smallFile is the size of a small file, in bytes.
	smallFile = 4 << 10
	// batch is how many small files a side does before the next side's turn.
	batch = 250
	// sdkExit is how long the Python SDK may take to exit once its input is closed.
	sdkExit = 30 * time.Second
)

var writer = agentfs.Caller{Actor: "bench", UID: 1000, GID: 1000}

// files is a system with one conversation, for the benchmarks of files.
type files struct {
	*system
	conversation harness.Conversation
}

// withFiles runs f with a system and a directory that is removed afterwards.
func withFiles(ctx context.Context, opt Options, f func(*files, string) error) (err error) {
	dir, err := os.MkdirTemp(opt.Dir, "hwbench-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// No turn is run, and so no model asked.
	s, err := startSystem(ctx, opt, dir, "http://127.0.0.1:9/v1", modelKey, scriptedmodel.DefaultModelName)
	if err != nil {
		return fmt.Errorf("%w (its log is %s)", err, opt.Log)
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	w := &files{system: s, conversation: harness.Conversation{Organization: organization, ID: "c-1"}}
	if _, err := s.client.CreateConversation(ctx, w.conversation); err != nil {
		return fmt.Errorf("create a conversation: %w", err)
	}
	return f(w, dir)
}

// side does the same work in one way.
type side struct {
	name string
	// put and get do files first to first+count, and return how long that took.
	put, get func(ctx context.Context, first, count int) (time.Duration, error)
	took     [2]time.Duration
}

// smallFiles puts and gets small files through REST, in process, as plain files and with the Python SDK.
func smallFiles(ctx context.Context, opt Options) (out []Result, err error) {
	env, err := interop.FromEnvironment()
	if err != nil {
		return nil, err
	}
	err = withFiles(ctx, opt, func(w *files, dir string) (err error) {
		core, err := agentfs.Create(ctx, agentfs.Options{Location: agentfs.Location{Path: filepath.Join(dir, "core.db")}}, writer, nil)
		if err != nil {
			return fmt.Errorf("make an AgentFS: %w", err)
		}
		defer func() { err = errors.Join(err, core.Close()) }()
		sdk, err := startSDK(ctx, env, filepath.Join(dir, "sdk.db"))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, sdk.stop()) }()
		plain := filepath.Join(dir, "plain")
		if err := os.Mkdir(plain, 0o700); err != nil {
			return err
		}
		sides := []*side{w.side(), coreSide(core), plainSide(plain), sdk.side()}
		for phase := range 2 {
			if err := byTurns(ctx, opt, sides, phase); err != nil {
				return err
			}
		}
		per := func(s *side, phase int) float64 {
			return float64(s.took[phase].Microseconds()) / float64(opt.Files)
		}
		for phase, action := range []string{"put", "get"} {
			rest, inside, onDisk, python := per(sides[0], phase), per(sides[1], phase), per(sides[2], phase), per(sides[3], phase)
			out = append(out,
				result("file_"+action+"_rest_by_plain", "us/file", rest, onDisk), result("file_"+action+"_core_by_plain", "us/file", inside, onDisk),
				result("file_"+action+"_rest_by_python_sdk", "us/file", rest, python), result("file_"+action+"_core_by_python_sdk", "us/file", inside, python))
		}
		return nil
	})
	return out, err
}

// byTurns lets each side do all files, a batch at a time; the order goes round.
func byTurns(ctx context.Context, opt Options, sides []*side, phase int) error {
	order := slices.Clone(sides)
	for first := 0; first < opt.Files; first += batch {
		count := min(batch, opt.Files-first)
		for _, s := range order {
			do := s.put
			if phase == 1 {
				do = s.get
			}
			took, err := do(ctx, first, count)
			if err != nil {
				return fmt.Errorf("%s, files from %d: %w", s.name, first, err)
			}
			s.took[phase] += took
		}
		order = append(order[1:], order[0])
		if first%(batch*10) == 0 {
			opt.Progress(fmt.Sprintf("Small files: %s of %d, %d done", []string{"put", "get"}[phase], opt.Files, first+count))
		}
	}
	return nil
}

func fileName(i int) string { return fmt.Sprintf("f%07d", i) }

// each times f for a range of files.
func each(first, count int, f func(name string) error) (time.Duration, error) {
	began := time.Now()
	for i := first; i < first+count; i++ {
		if err := f(fileName(i)); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

var content = make([]byte, smallFile)

func (w *files) side() *side {
	path := func(name string) string { return "workspace/small/" + name }
	return &side{name: "REST",
		put: func(ctx context.Context, first, count int) (time.Duration, error) {
			return each(first, count, func(name string) error {
				_, _, err := w.client.PutFile(ctx, w.conversation, path(name), nil, bytes.NewReader(content), smallFile)
				return err
			})
		},
		get: func(ctx context.Context, first, count int) (time.Duration, error) {
			return each(first, count, func(name string) error {
				a, err := w.client.GetFile(ctx, w.conversation, path(name), nil)
				return whole(len(a.Body), err)
			})
		},
	}
}

func coreSide(fs *agentfs.FS) *side {
	return &side{name: "pkg/agentfs",
		put: func(ctx context.Context, first, count int) (time.Duration, error) {
			return each(first, count, func(name string) error {
				dir, err := fs.MkdirAll(ctx, writer, "/small", 0o755)
				if err != nil {
					return err
				}
				_, _, err = fs.Put(ctx, writer, agentfs.Placement{Parent: dir.Ino, Name: name, Replace: true}, 0o644, content)
				return err
			})
		},
		get: func(ctx context.Context, first, count int) (time.Duration, error) {
			buffer := make([]byte, smallFile)
			return each(first, count, func(name string) error {
				a, err := fs.Resolve(ctx, "/small/"+name)
				if err != nil {
					return err
				}
				file, err := fs.Open(ctx, writer, a.Ino, os.O_RDONLY)
				if err != nil {
					return err
				}
				n, err := file.ReadAt(buffer, 0)
				if errors.Is(err, io.EOF) {
					err = nil
				}
				return errors.Join(whole(n, err), file.Close())
			})
		},
	}
}

// plainSide writes each file as durably: beside, synced, renamed, the directory synced.
func plainSide(dir string) *side {
	return &side{name: "plain files",
		put: func(_ context.Context, first, count int) (time.Duration, error) {
			return each(first, count, func(name string) error {
				return writePlain(dir, name, func(f *os.File) error {
					_, err := f.Write(content)
					return err
				})
			})
		},
		get: func(_ context.Context, first, count int) (time.Duration, error) {
			return each(first, count, func(name string) error {
				got, err := os.ReadFile(filepath.Join(dir, name))
				return whole(len(got), err)
			})
		},
	}
}

func writePlain(dir, name string, fill func(*os.File) error) error {
	path := filepath.Join(dir, name)
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	if err := errors.Join(fill(f), f.Sync(), f.Close(), os.Rename(path+".new", path)); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func whole(n int, err error) error {
	if err == nil && n != smallFile {
		err = fmt.Errorf("read %d bytes, want %d", n, smallFile)
	}
	return err
}

// sdk is the Python SDK in a process that measures itself.
type sdk struct {
	process *process
	in      io.WriteCloser
	out     *bufio.Reader
	release func() bool
}

func startSDK(ctx context.Context, env interop.Environment, file string) (*sdk, error) {
	cmd, err := env.PythonSDK().Command("measure", file)
	if err != nil {
		return nil, fmt.Errorf("start the Python SDK: %w", err)
	}
	in, out, err := pipes(cmd)
	if err != nil {
		return nil, fmt.Errorf("start the Python SDK: %w", err)
	}
	cmd.Stderr = os.Stderr
	p, err := start(cmd)
	if err != nil {
		return nil, fmt.Errorf("start the Python SDK: %w", err)
	}
	s := &sdk{process: p, in: in, out: bufio.NewReader(out)}
	s.release = context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
	return s, nil
}

func pipes(cmd *exec.Cmd) (io.WriteCloser, io.ReadCloser, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	return in, out, err
}

func (s *sdk) do(op string, first, count int) (time.Duration, error) {
	line, err := json.Marshal(map[string]any{"op": op, "directory": "/small", "first": first, "count": count, "size": smallFile})
	if err != nil {
		return 0, err
	}
	if _, err := s.in.Write(append(line, '\n')); err != nil {
		return 0, fmt.Errorf("ask the Python SDK: %w", err)
	}
	answer, err := s.out.ReadBytes('\n')
	if err != nil {
		return 0, fmt.Errorf("read the Python SDK's answer: %w", err)
	}
	var took struct{ Seconds float64 }
	if err := json.Unmarshal(answer, &took); err != nil {
		return 0, fmt.Errorf("read the Python SDK's answer: %w", err)
	}
	return time.Duration(took.Seconds * float64(time.Second)), nil
}

func (s *sdk) side() *side {
	return &side{name: "Python SDK",
		put: func(_ context.Context, first, count int) (time.Duration, error) { return s.do("put", first, count) },
		get: func(_ context.Context, first, count int) (time.Duration, error) { return s.do("get", first, count) },
	}
}

func (s *sdk) stop() error {
	s.release()
	if err := s.process.stop(s.in.Close, sdkExit); err != nil {
		return fmt.Errorf("stop the Python SDK: %w", err)
	}
	return nil
}
