package agentfs

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// Holding is one hold on a file.
type Holding struct {
	Holder  string
	Created time.Time
}

// Hold keeps the files from being removed or replaced until Release, all of them or none: ENOENT if
// one has no name. Holding again changes nothing.
func (f *FS) Hold(ctx context.Context, holder string, inos []Ino) error {
	if len(inos) == 0 {
		return nil
	}
	err := f.update(ctx, func(t *tx) error {
		for _, ino := range inos {
			a, err := t.stat(ino)
			if err != nil {
				return err
			}
			if a.Nlink == 0 {
				return syscall.ENOENT
			}
			if _, err := t.exec(`INSERT OR IGNORE INTO hw_hold (holder, ino, created) VALUES (?, ?, ?)`,
				holder, ino, t.now.UnixNano()); err != nil {
				return fmt.Errorf("insert hold: %w", err)
			}
		}
		return nil
	})
	return fail("hold", "", err)
}

// Release ends all holds of a holder; one that has none is fine.
func (f *FS) Release(ctx context.Context, holder string) error {
	err := f.update(ctx, func(t *tx) error {
		_, err := t.exec(`DELETE FROM hw_hold WHERE holder = ?`, holder)
		return err
	})
	return fail("release", "", err)
}

// Holders returns who holds a file, the oldest hold first.
func (f *FS) Holders(ctx context.Context, ino Ino) (holders []Holding, err error) {
	err = f.read(ctx, func(t *tx) error {
		return t.each(`SELECT CAST(holder AS BLOB), created FROM hw_hold WHERE ino = ? ORDER BY created, holder`, func(r row) error {
			holders = append(holders, Holding{Holder: r.text(0), Created: time.Unix(0, r.int(1))})
			return nil
		}, ino)
	})
	return holders, fail("holders", "", err)
}

// unheld refuses what must not touch a held file.
func (t *tx) unheld(ino Ino) error {
	r, err := t.row(`SELECT CAST(holder AS BLOB) FROM hw_hold WHERE ino = ? ORDER BY created, holder LIMIT 1`, ino)
	if err != nil {
		return fmt.Errorf("read holds: %w", err)
	}
	if r != nil {
		return held(r.text(0))
	}
	return nil
}
