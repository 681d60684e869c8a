package checks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"humanwork.internal/integration/harness"
)

// Environment of the kills during writes: how many, and the seed that repeats their choices.
const (
	killsVariable    = "HUMANWORK_KILLS"
	killSeedVariable = "HUMANWORK_KILL_SEED"

	kills         = 200
	killsLimit    = 12 * time.Minute
	killWriters   = 4
	killSlots     = 10
	cutUpload     = 1 << 30 // declared
	cutAfter      = 256 << 20
	storedAtMost  = 1.25 // bytes on disk for a byte of content
	logAllowance  = 64 << 20
	chainRecheck  = 20 // kills between two readings of the whole ledger
	smallContent  = 20_000
	largeContent  = 3 << 20
	killAtMost    = 250 * time.Millisecond
	absentContent = ""
)

// slot is one path that one writer writes: what was acknowledged last, and what else it may be since a call that got no answer.
type slot struct {
	path string
	// may are the digests it can have, absentContent for no file; one once it is known.
	may []string
}

// fileKills writes files while agentfs is killed.
type fileKills struct {
	*world
	conv     harness.Conversation
	slots    [killWriters][]*slot
	position int64 // of the ledger, up to which the chain was read
	last     map[int64]int64

	mu       sync.Mutex
	attached map[string]string // acknowledged: URI to digest
	tried    map[string]bool   // digests of all attachments that were sent
	seen     map[string]bool   // attachments whose content was read
	acked    int
	cut      int
}

// FileKills kills agentfs at random during mixed writes: what was acknowledged is there, what was not is there whole or not at all.
func FileKills(t harness.T) string {
	n, seed := kills, uint64(time.Now().UnixNano())
	if v, err := strconv.Atoi(os.Getenv(killsVariable)); err == nil && v > 0 {
		n = v
	}
	if v, err := strconv.ParseUint(os.Getenv(killSeedVariable), 10, 64); err == nil {
		seed = v
	}
	t.Logf("%s=%d %s=%d", killsVariable, n, killSeedVariable, seed)
	w := start(t, killsLimit, harness.Options{})
	k := &fileKills{world: w, last: map[int64]int64{}, attached: map[string]string{}, tried: map[string]bool{}, seen: map[string]bool{}}
	k.conv, _ = w.conversation("killed")
	for i := range k.slots {
		for j := range killSlots {
			k.slots[i] = append(k.slots[i], &slot{path: fmt.Sprintf("workspace/writer-%d/%d.bin", i, j), may: []string{absentContent}})
		}
	}
	random := rand.New(rand.NewPCG(seed, 0))
	began := time.Now()
	for i := range n {
		k.round(rand.New(rand.NewPCG(seed, uint64(i+1))), time.Duration(random.Int64N(int64(killAtMost))))
		k.whole(i%chainRecheck == chainRecheck-1 || i == n-1)
		if t.Failed() || w.ctx.Err() != nil {
			t.Errorf("stopped after kill %d of %d with seed %d: %v", i+1, n, seed, context.Cause(w.ctx))
			return ""
		}
	}
	took := time.Since(began).Round(time.Second)
	upload := k.cutUpload()
	k.whole(true)
	return fmt.Sprintf("%d kills of agentfs in %v during mixed writes: %d acknowledged writes there with their bytes, %d calls cut and none half there, every check clean, "+
		"%d ledger records in whole chains; %s", n, took, k.acked, k.cut, k.records(), upload)
}

func (k *fileKills) records() (n int64) {
	for _, sequence := range k.last {
		n += sequence
	}
	return n
}

// round lets the writers work until agentfs is killed after some time, and starts it again.
func (k *fileKills) round(random *rand.Rand, after time.Duration) {
	k.t.Helper()
	var writers sync.WaitGroup
	var over atomic.Bool
	for i := range k.slots {
		own := rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
		writers.Go(func() {
			for !over.Load() && k.ctx.Err() == nil && k.work(own, k.slots[i]) {
			}
		})
	}
	pause := time.NewTimer(after)
	<-pause.C
	k.Kill(harness.AgentFS)
	over.Store(true)
	writers.Wait()
	k.Launch(harness.AgentFS)
	if _, err := harness.Durably(k.ctx, func() (int, error) {
		_, pages, err := k.Client.Files(k.ctx, k.conv, "workspace/none")
		return pages, err
	}); err != nil {
		k.t.Fatalf("after a restart: %v", err)
	}
}

// work does one thing and reports whether it was answered.
func (k *fileKills) work(random *rand.Rand, slots []*slot) bool {
	s := slots[random.IntN(len(slots))]
	switch p := random.IntN(100); {
	case p < 45:
		return k.write(s, content(random, smallContent))
	case p < 55:
		return k.write(s, content(random, largeContent))
	case p < 70:
		if len(s.may) == 1 && s.may[0] == absentContent {
			return true
		}
		_, err := k.Client.DeleteFile(k.ctx, k.conv, s.path, nil)
		return k.settled(s, absentContent, err)
	case p < 80:
		return k.attach(content(random, smallContent))
	case p < 90:
		_, _, err := k.Client.Files(k.ctx, k.conv, s.path[:strings.LastIndexByte(s.path, '/')])
		return k.answered("list", err)
	default:
		return k.look(s)
	}
}

// content is different each time.
func content(random *rand.Rand, most int) []byte {
	raw := make([]byte, 16+random.IntN(most))
	for i := 0; i+8 <= len(raw); i += 8 {
		copy(raw[i:], fmt.Appendf(nil, "%08x", random.Uint32()))
	}
	return raw
}

func (k *fileKills) write(s *slot, raw []byte) bool {
	_, _, err := k.Client.PutFile(k.ctx, k.conv, s.path, nil, bytes.NewReader(raw), int64(len(raw)))
	return k.settled(s, digest(raw), err)
}

// settled notes what a write made of a slot.
func (k *fileKills) settled(s *slot, is string, err error) bool {
	if k.answered("write "+s.path, err) {
		s.may = []string{is}
		k.mu.Lock()
		k.acked++
		k.mu.Unlock()
		return true
	}
	s.may = append(s.may, is)
	return false
}

func (k *fileKills) attach(raw []byte) bool {
	sum := digest(raw)
	k.mu.Lock()
	k.tried[sum] = true
	k.mu.Unlock()
	got, err := k.Client.Attach(k.ctx, k.conv, "a.bin", bytes.NewReader(raw), int64(len(raw)))
	if !k.answered("attach", err) {
		return false
	}
	k.mu.Lock()
	k.attached[got.URI] = sum
	k.acked++
	k.mu.Unlock()
	return true
}

// answered reports whether a call was answered; one that was refused is a failure.
func (k *fileKills) answered(what string, err error) bool {
	if err == nil {
		return true
	}
	var api *harness.APIError
	if errors.As(err, &api) && api.Status != 503 && api.Status != 504 {
		k.t.Errorf("%s: %v", what, err)
	}
	k.mu.Lock()
	k.cut++
	k.mu.Unlock()
	return false
}

// look reads a slot and learns what it is.
func (k *fileKills) look(s *slot) bool {
	is, err := k.contentOf(s.path)
	if !k.answered("read "+s.path, err) {
		return false
	}
	if !slices.Contains(s.may, is) {
		k.t.Errorf("%s has the content %.12q, want one of %.12q", s.path, is, s.may)
	}
	s.may = []string{is}
	return true
}

// contentOf is the digest of a file, absentContent if there is none.
func (k *fileKills) contentOf(path string) (string, error) {
	sum, _, err := k.read(k.conv, path)
	if harness.ReasonOf(err) == "FILE_NOT_FOUND" {
		return absentContent, nil
	}
	return sum, err
}

// whole checks everything after a restart.
func (k *fileKills) whole(chains bool) {
	k.t.Helper()
	known := map[string]bool{}
	for _, slots := range k.slots {
		for _, s := range slots {
			if !k.look(s) {
				k.t.Errorf("%s cannot be read after a restart", s.path)
			}
			if s.may[0] != absentContent {
				known[s.path] = true
			}
		}
	}
	listed, _, err := k.Client.Files(k.ctx, k.conv, "")
	if err != nil {
		k.t.Fatalf("list after a restart: %v", err)
	}
	there := map[string]bool{}
	for _, f := range listed {
		there[f.URI] = true
		if strings.HasPrefix(f.Path, "artifacts/inbound/") {
			k.attachment(f)
			continue
		}
		if !known[f.Path] {
			k.t.Errorf("the list has %s, which cannot be read", f.Path)
		}
		delete(known, f.Path)
	}
	for path := range known {
		k.t.Errorf("the list does not have %s, which can be read", path)
	}
	for uri := range k.attached {
		if !there[uri] {
			k.t.Errorf("the acknowledged attachment %s is gone", uri)
		}
	}
	report, err := k.Client.CheckAgentFS(k.ctx, k.org, false)
	if err != nil || len(report.Faults) > 0 {
		k.t.Errorf("the check after a kill: %+v, %v; want no fault", report.Faults, err)
	}
	if chains {
		k.chains()
	}
}

// attachment reads an attachment once and wants a content that was sent whole.
func (k *fileKills) attachment(f harness.File) {
	k.t.Helper()
	if k.seen[f.URI] {
		return
	}
	sum, err := k.contentOf(f.Path)
	if want, acknowledged := k.attached[f.URI]; err != nil || !k.tried[sum] || acknowledged && sum != want {
		k.t.Errorf("%s has the digest %.12q (%v), want that of an attachment that was sent", f.URI, sum, err)
	}
	k.seen[f.URI] = true
}

// chains wants every writer's records in the ledger without a gap, none changed since it was read.
func (k *fileKills) chains() {
	k.t.Helper()
	records, err := k.Client.Timeline(k.ctx, harness.Conversation{Organization: k.org}, k.position)
	if err != nil {
		k.t.Fatalf("read the ledger: %v", err)
	}
	for _, r := range records {
		if r.Position <= k.position || r.Sequence != k.last[r.Writer]+1 || r.Hash == "" || r.Actor == "" || r.Action == "" {
			k.t.Errorf("ledger record %+v follows position %d and sequence %d of its writer", r, k.position, k.last[r.Writer])
			return
		}
		k.position, k.last[r.Writer] = r.Position, r.Sequence
	}
}

// cutUpload kills agentfs in the middle of 1 GiB: nothing of it is visible, and its space is used again.
func (k *fileKills) cutUpload() string {
	k.t.Helper()
	path := "workspace/cut.bin"
	before := k.size()
	reached, killed := make(chan struct{}), make(chan struct{})
	source := io.MultiReader(io.LimitReader(rand.NewChaCha8([32]byte{3}), cutAfter), &gate{reached: reached, open: killed}, rand.NewChaCha8([32]byte{4}))
	sent := make(chan error, 1)
	go func() {
		_, _, err := k.Client.PutFile(k.ctx, k.conv, path, nil, io.LimitReader(source, cutUpload), cutUpload)
		sent <- err
	}()
	select {
	case <-reached:
	case err := <-sent:
		k.t.Fatalf("the upload ended early: %v", err)
	}
	k.Kill(harness.AgentFS)
	close(killed)
	if err := <-sent; err == nil {
		k.t.Errorf("an upload was acknowledged by a killed process")
	}
	k.Launch(harness.AgentFS)
	if is, err := harness.Durably(k.ctx, func() (string, error) { return k.contentOf(path) }); err != nil || is != absentContent {
		k.t.Errorf("the upload that was cut is there as %.12q (%v), want nothing", is, err)
	}
	after := k.size()
	_, _, err := k.Client.PutFile(k.ctx, k.conv, path, nil, io.LimitReader(rand.NewChaCha8([32]byte{5}), cutAfter), cutAfter)
	if err != nil {
		k.t.Fatalf("write after the upload that was cut: %v", err)
	}
	final := k.size()
	if most := before + int64(storedAtMost*cutAfter) + logAllowance; final > most {
		k.t.Errorf("the database has %d MiB, %d MiB after the cut upload and %d MiB after the next of %d MiB: the space was not used again", before>>20, after>>20, final>>20, cutAfter>>20)
	}
	if _, err := k.Client.DeleteFile(k.ctx, k.conv, path, nil); err != nil {
		k.t.Errorf("remove %s: %v", path, err)
	}
	return fmt.Sprintf("an upload of 1 GiB killed after %d MiB left no file; the database had %d MiB before, %d MiB after and %d MiB after the next %d MiB",
		cutAfter>>20, before>>20, after>>20, final>>20, cutAfter>>20)
}

func (k *fileKills) size() int64 {
	k.t.Helper()
	n, err := k.AgentFSBytes(k.org)
	if err != nil {
		k.t.Fatalf("%v", err)
	}
	return n
}

// gate is a part of a stream that says when it is reached, and has no bytes.
type gate struct {
	reached, open chan struct{}
}

func (g *gate) Read([]byte) (int, error) {
	close(g.reached)
	<-g.open
	return 0, io.EOF
}
