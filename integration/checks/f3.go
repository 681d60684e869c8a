package checks

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"math/rand/v2"
	"mime"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"humanwork.internal/integration/harness"
)

const (
	largeBytes   = 1 << 30
	manyEntries  = 100_000
	sparseBytes  = 64 << 20
	flatBytes    = 96 << 20 // how much a transfer of any size may add to a process
	twoWriters   = 60
	writtenBytes = 200_000
)

// awkward are names that break others' work.
var awkward = []string{
	"with spaces in it", "'single' \"double\" `back`", "2024-01-05", "2024-01-05 10:00:00", "it's.txt", strings.Repeat("n", 255), strings.Repeat("é", 127) + "x",
	"caf\u00e9", "cafe\u0301", "-rf", "--", "👩\u200d👩\u200d👧.png", "🇩🇪", "new\nline", "tab\tand\rreturn", "100%", "%2e%2e", "%00", `back\slash`, "a?b#c&d=e;f", "*", "[a-z]", "~", "...", ".hidden", " ",
	" leading", "trailing ", "trailing.", "con", "NUL", "\u202eexe.txt", "\ufeffbom", "\u00a0", "\x01\x1b[31m", "\x7f", "123", "1e5", "null", "true", "0x10", "<script>", "${HOME}", "$(id)", "a:b", "@", "+", "日本語.txt", "שלום",
	"x'; DROP TABLE fs_dentry; --", "{json: \"yes\"}", "C:", "CASE", "case", "ﬁ", "fi",
}

// F3 takes names, sizes and counts through REST that break other stores.
func F3(t harness.T) string {
	w := start(t, 5*time.Minute, harness.Options{})
	conv, _ := w.conversation("shapes")
	names := w.awkwardNames(conv)
	planted := w.planted(conv)
	writers := w.twoWriters(conv)
	large := w.large(conv)
	report, err := w.Client.CheckAgentFS(w.ctx, w.org, false)
	if err != nil || len(report.Faults) > 0 {
		t.Errorf("the check afterwards: %+v, %v; want no fault", report.Faults, err)
	}
	return fmt.Sprintf("%s; %s; %s; %s", names, planted, writers, large)
}

// awkwardNames writes each name at the three roots and as a directory, and reads it by its path, its URI's path and the list.
func (w *world) awkwardNames(conv harness.Conversation) string {
	w.t.Helper()
	contents := map[string]string{}
	for i, name := range awkward {
		for _, path := range []string{"workspace/" + name, "artifacts/outbound/" + name, "workspace/d/" + name + "/" + name} {
			contents[path] = fmt.Sprintf("content %d of %q", i, path)
			if i%2 == 1 {
				contents[path] = "" // empty files
			}
			f := w.put(w.Client, conv, path, contents[path])
			if f.Path != path {
				w.t.Errorf("written %q is answered as %q", path, f.Path)
			}
		}
	}
	listed, _, err := w.Client.Files(w.ctx, conv, "")
	if err != nil {
		w.t.Fatalf("list: %v", err)
	}
	found := map[string]harness.File{}
	for _, f := range listed {
		found[f.Path] = f
	}
	if len(found) != len(contents) || len(listed) != len(contents) {
		w.t.Errorf("the list has %d files, %d different ones, want %d", len(listed), len(found), len(contents))
	}
	for path, content := range contents {
		f := found[path]
		if f.Size != int64(len(content)) || f.Mode&0o170000 != 0o100000 {
			w.t.Errorf("the list has %q as %+v, want a regular file of %d bytes", path, f, len(content))
			continue
		}
		escaped, isFile := strings.CutPrefix(f.URI, "file:///")
		a, err := w.Client.Wire(w.ctx, http.MethodGet, conv.Path()+"/files/"+escaped, nil, "")
		if err != nil || !isFile || a.Status != http.StatusOK || string(a.Body) != content {
			w.t.Errorf("GET of the URI %q of %q = %d %.60q (%v), want %q", f.URI, path, a.Status, a.Body, err, content)
			continue
		}
		w.named(path, a)
	}
	w.sameInTheDatabase(conv, contents)
	for _, path := range slices.Sorted(maps.Keys(contents)) {
		if !strings.HasPrefix(path, "artifacts/") {
			continue
		}
		if _, err := w.Client.DeleteFile(w.ctx, conv, path, nil); err != nil {
			w.t.Errorf("remove %q: %v", path, err)
		}
	}
	left, _, err := w.Client.Files(w.ctx, conv, "artifacts/")
	if err != nil || len(left) > 0 {
		w.t.Errorf("%d files are left of those removed (%v)", len(left), err)
	}
	for _, name := range []string{strings.Repeat("n", 256), strings.Repeat("é", 128), "a\xffb", "a\x00b"} {
		if _, _, err := w.Client.PutFile(w.ctx, conv, "workspace/"+name, nil, strings.NewReader("x"), 1); harness.ReasonOf(err) != "INVALID_PATH" {
			w.t.Errorf("write the name %.20q = %v, want INVALID_PATH", name, err)
		}
	}
	return fmt.Sprintf("%d names of %d kinds equal by path, URI, list and SQLite", len(contents), len(awkward))
}

// named reads the name a browser would save the file under.
func (w *world) named(path string, a harness.Answer) {
	w.t.Helper()
	name := path[strings.LastIndexByte(path, '/')+1:]
	header := a.Header.Get("Content-Disposition")
	_, params, err := mime.ParseMediaType(header)
	if err != nil || params["filename"] != name {
		w.t.Errorf("Content-Disposition of %q is %q: %q (%v)", name, header, params["filename"], err)
	}
}

// sameInTheDatabase reads the names with SQLite alone.
func (w *world) sameInTheDatabase(conv harness.Conversation, contents map[string]string) {
	w.t.Helper()
	copied, err := w.Export(w.ctx, w.org)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	inodes, err := w.Inodes(w.ctx, copied)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	sums := map[string]string{}
	for _, i := range inodes {
		sums[i.Path] = i.SHA256
	}
	for path, content := range contents {
		below := "/conversations/" + conv.ID + "/" + strings.Replace(path, "workspace", "work", 1)
		if sums[below] != digest([]byte(content)) {
			w.t.Errorf("SQLite has %q with digest %q, want %s", below, sums[below], digest([]byte(content)))
		}
	}
}

// planted puts a sparse file and a directory of 100,000 entries into a copied-out database, takes it back and reads both.
func (w *world) planted(conv harness.Conversation) string {
	w.t.Helper()
	copied, err := w.Export(w.ctx, w.org)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	defer os.RemoveAll(copied)
	work, head := "/conversations/"+conv.ID+"/work/", []byte("before the hole")
	if err := w.Plant(w.ctx, copied,
		harness.Planted{Path: work + "sparse", Mode: 0o100644, Content: head, Size: sparseBytes}, harness.Planted{Path: work + "only-a-hole", Mode: 0o100644, Size: sparseBytes},
		harness.Planted{Path: work + "many", Mode: 0o040755}, harness.Planted{Path: work + "many", Mode: 0o100644, Count: manyEntries},
	); err != nil {
		w.t.Fatalf("change the export: %v", err)
	}
	if err := w.Restore(w.ctx, w.org, copied); err != nil {
		w.t.Fatalf("restore the changed export: %v", err)
	}
	for path, beginning := range map[string][]byte{"workspace/sparse": head, "workspace/only-a-hole": nil} {
		want := sha256.New()
		want.Write(beginning)
		if _, err := io.CopyN(want, zeros{}, sparseBytes-int64(len(beginning))); err != nil {
			w.t.Fatalf("%v", err)
		}
		if sum, n, err := w.read(conv, path); err != nil || n != sparseBytes || sum != hexOf(want) {
			w.t.Errorf("%s has %d bytes with digest %s (%v), want %d with %s", path, n, sum, err, sparseBytes, hexOf(want))
		}
		part, err := w.Client.GetFile(w.ctx, conv, path, http.Header{"Range": {"bytes=-10"}})
		if err != nil || part.Status != http.StatusPartialContent || !bytes.Equal(part.Body, make([]byte, 10)) {
			w.t.Errorf("the end of %s = %d %q (%v), want 206 with 10 zeros", path, part.Status, part.Body, err)
		}
	}
	began := time.Now()
	files, pages, err := w.Client.Files(w.ctx, conv, "workspace/many/")
	took := time.Since(began)
	if err != nil || len(files) != manyEntries {
		w.t.Fatalf("the list of the large directory has %d entries (%v), want %d", len(files), err, manyEntries)
	}
	for i, f := range files {
		if want := fmt.Sprintf("workspace/many/f-%06d", i); f.Path != want {
			w.t.Fatalf("entry %d of the large directory is %q, want %q", i, f.Path, want)
		}
	}
	return fmt.Sprintf("sparse files of %d MiB read as zeros; %d entries listed in %d pages in %v", sparseBytes>>20, len(files), pages, took.Round(10*time.Millisecond))
}

// read returns the digest and the size of a file that is not kept in memory.
func (w *world) read(conv harness.Conversation, path string) (sum string, size int64, err error) {
	resp, err := w.Client.OpenFile(w.ctx, conv, path, nil)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	h := sha256.New()
	n, err := io.Copy(h, resp.Body)
	return hexOf(h), n, err
}

func hexOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// twoWriters writes one file from two clients while a third reads: each read is one whole content of one of them, and conditional writes
// lose no update.
func (w *world) twoWriters(conv harness.Conversation) string {
	w.t.Helper()
	path := "workspace/shared"
	content := func(writer, i int) string {
		return strings.Repeat(fmt.Sprintf("writer %d content %04d\n", writer, i), writtenBytes/22)
	}
	w.put(w.Client, conv, path, content(0, 0))
	var mu sync.Mutex
	valid := map[string]bool{digest([]byte(content(0, 0))): true}
	var writers sync.WaitGroup
	for writer := range 2 {
		writers.Go(func() {
			for i := range twoWriters {
				text := content(writer, i)
				mu.Lock()
				valid[digest([]byte(text))] = true
				mu.Unlock()
				if _, _, err := w.Client.PutFile(w.ctx, conv, path, nil, strings.NewReader(text), int64(len(text))); err != nil {
					w.t.Errorf("writer %d: %v", writer, err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	reads := 0
	for reading := true; reading; reads++ {
		select {
		case <-done:
			reading = false
		default:
		}
		got, err := w.Client.GetFile(w.ctx, conv, path, nil)
		if err != nil {
			w.t.Errorf("read between two writers: %v", err)
			break
		}
		mu.Lock()
		if !valid[digest(got.Body)] {
			w.t.Errorf("read between two writers %d bytes that neither wrote: %.60q", len(got.Body), got.Body)
		}
		mu.Unlock()
	}
	return fmt.Sprintf("%d reads between %d writes of two clients each one whole content; %d conditional increments by two clients, none lost", reads, 2*twoWriters, w.increments(conv))
}

// increments lets two clients count up in one file with If-Match.
func (w *world) increments(conv harness.Conversation) int {
	w.t.Helper()
	path, each := "workspace/counter", 25
	w.put(w.Client, conv, path, "0")
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			for done := 0; done < each && w.ctx.Err() == nil; {
				got, err := w.Client.GetFile(w.ctx, conv, path, nil)
				var n int
				if err == nil {
					_, err = fmt.Sscan(string(got.Body), &n)
				}
				if err == nil {
					next := fmt.Sprint(n + 1)
					_, _, err = w.Client.PutFile(w.ctx, conv, path, http.Header{"If-Match": {got.Header.Get("ETag")}}, strings.NewReader(next), int64(len(next)))
				}
				switch {
				case err == nil:
					done++
				case harness.ReasonOf(err) != "VERSION_MISMATCH":
					w.t.Errorf("increment: %v", err)
					return
				}
			}
		})
	}
	both.Wait()
	if got, err := w.Client.GetFile(w.ctx, conv, path, nil); err != nil || string(got.Body) != fmt.Sprint(2*each) {
		w.t.Errorf("the counter is %q (%v), want %d", got.Body, err, 2*each)
	}
	return 2 * each
}

// large sends 1 GiB up and down and looks at the memory of both services on the way.
func (w *world) large(conv harness.Conversation) string {
	w.t.Helper()
	path := "workspace/large.bin"
	names := []string{harness.AgentFS, harness.Gateway(0)}
	// What a small transfer needs is no growth.
	w.put(w.Client, conv, "workspace/warm", strings.Repeat("warm", 1<<20))
	if _, _, err := w.read(conv, "workspace/warm"); err != nil {
		w.t.Fatalf("read 4 MiB: %v", err)
	}
	before := map[string]int64{}
	for _, name := range names {
		if err := w.ResetPeak(name); err != nil {
			w.t.Fatalf("%v", err)
		}
		before[name] = w.peak(name)
	}
	sent := sha256.New()
	began := time.Now()
	f, _, err := w.Client.PutFile(w.ctx, conv, path, nil, io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{7}), largeBytes), sent), largeBytes)
	if err != nil {
		w.t.Fatalf("send 1 GiB: %v", err)
	}
	up := time.Since(began)
	if f.SHA256 != "" && f.SHA256 != hexOf(sent) || f.Size != largeBytes {
		w.t.Errorf("1 GiB sent is answered as %d bytes with digest %s, want %s", f.Size, f.SHA256, hexOf(sent))
	}
	began = time.Now()
	sum, n, err := w.read(conv, path)
	down := time.Since(began)
	if err != nil || n != largeBytes || sum != hexOf(sent) {
		w.t.Errorf("1 GiB read back: %d bytes with digest %s (%v), want %s", n, sum, err, hexOf(sent))
	}
	var grown []string
	for _, name := range names {
		added := w.peak(name) - before[name]
		if added > flatBytes {
			w.t.Errorf("%s grew by %d MiB over 1 GiB up and down, want at most %d", name, added>>20, flatBytes>>20)
		}
		grown = append(grown, fmt.Sprintf("%s +%d MiB to %d", name, added>>20, w.peak(name)>>20))
	}
	middle, err := w.Client.GetFile(w.ctx, conv, path, http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", largeBytes-5, largeBytes-1)}})
	if err != nil || middle.Status != http.StatusPartialContent || len(middle.Body) != 5 {
		w.t.Errorf("the last 5 bytes of 1 GiB = %d with %d bytes (%v)", middle.Status, len(middle.Body), err)
	}
	return fmt.Sprintf("1 GiB up in %.1f s (%.0f MiB/s) and down in %.1f s (%.0f MiB/s), equal SHA-256, peak memory %s",
		up.Seconds(), 1024/up.Seconds(), down.Seconds(), 1024/down.Seconds(), strings.Join(grown, ", "))
}

func (w *world) peak(name string) int64 {
	w.t.Helper()
	n, err := w.Peak(name)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	return n
}
