package agentfs

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"sync"

	// The driver registers itself as "libsql".
	_ "github.com/tursodatabase/go-libsql"
)

// busyMilliseconds bounds how long a statement waits for another connection's lock.
const busyMilliseconds = 5000

// Location says where a database is: a file, or a remote libSQL server.
type Location struct {
	// Path of the file; empty for a remote one.
	Path string
	// URL is http, https or libsql; Token authenticates there.
	URL, Token string
}

func (l Location) remote() bool { return l.URL != "" }

// libsql is the driver without the pool of database/sql: connections here are pinned anyway, and
// the pool's locks and goroutines cost as much as a statement.
var libsql = sync.OnceValues(func() (driver.DriverContext, error) {
	db, err := sql.Open("libsql", ":memory:")
	if err != nil {
		return nil, fmt.Errorf("find the libsql driver: %w", err)
	}
	d, ok := db.Driver().(driver.DriverContext)
	if !ok {
		return nil, errors.Join(errors.New("the libsql driver has no connector"), db.Close())
	}
	return d, db.Close()
})

// conn is one connection, for one goroutine at a time. The driver ignores a context while a
// statement runs, so none is passed: callers wait for their turn under theirs.
type conn struct {
	connector driver.Connector
	driver    interface {
		driver.Conn
		driver.ExecerContext
		driver.QueryerContext
	}
}

// dial connects. Mode is SQLite's "ro", "rw" or "rwc"; a remote server has none.
func dial(l Location, mode string) (*conn, error) {
	d, err := libsql()
	if err != nil {
		return nil, err
	}
	u := &url.URL{Scheme: "file", Path: l.Path, RawQuery: "mode=" + mode}
	if l.remote() {
		if u, err = url.Parse(l.URL); err != nil {
			return nil, errors.New("the URL of the database is malformed")
		}
		u.RawQuery = url.Values{"authToken": {l.Token}}.Encode()
	}
	c := &conn{}
	if c.connector, err = d.OpenConnector(u.String()); err != nil {
		return nil, fmt.Errorf("open the database: %w", translate(err))
	}
	made, err := c.connector.Connect(context.Background())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to the database: %w", translate(err)), c.closeConnector())
	}
	var ok bool
	if c.driver, ok = made.(interface {
		driver.Conn
		driver.ExecerContext
		driver.QueryerContext
	}); !ok {
		return nil, errors.Join(errors.New("the libsql driver's connection lacks a method"), made.Close(), c.closeConnector())
	}
	if !l.remote() {
		if _, err := c.row("PRAGMA busy_timeout = " + strconv.Itoa(busyMilliseconds)); err != nil {
			return nil, errors.Join(fmt.Errorf("bound waiting: %w", err), c.close())
		}
	}
	return c, nil
}

func (c *conn) closeConnector() error {
	if closer, ok := c.connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

func (c *conn) close() error { return errors.Join(c.driver.Close(), c.closeConnector()) }

// row is what a query returned. A column of another type than asked reads as zero: files that an
// SDK wrote may hold anything, and Check says so.
type row []driver.Value

func (r row) int(i int) int64 {
	n, _ := r[i].(int64)
	return n
}

func (r row) null(i int) bool { return r[i] == nil }

// bytes is for blobs and for texts, which must be selected as CAST(x AS BLOB): the driver answers a
// time for a text that looks like a date.
func (r row) bytes(i int) []byte {
	switch v := r[i].(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	}
	return nil
}

func (r row) text(i int) string { return string(r.bytes(i)) }

// exec runs a statement that returns no rows and tells how many it changed.
func (c *conn) exec(query string, args ...any) (int64, error) {
	result, err := c.driver.ExecContext(context.Background(), query, bind(args))
	if err != nil {
		return 0, translate(err)
	}
	return result.RowsAffected()
}

// each runs fn for every row; the row is not valid afterwards.
func (c *conn) each(query string, fn func(row) error, args ...any) error {
	rows, err := c.driver.QueryContext(context.Background(), query, bind(args))
	if err != nil {
		return translate(err)
	}
	values := make(row, len(rows.Columns()))
	for {
		if err := rows.Next(values); errors.Is(err, io.EOF) {
			return rows.Close()
		} else if err != nil {
			return errors.Join(translate(err), rows.Close())
		}
		if err := fn(values); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
}

// row returns the first row, nil if there is none.
func (c *conn) row(query string, args ...any) (row, error) {
	var first row
	err := c.each(query, func(r row) error {
		if first == nil {
			first = append(row{}, r...)
		}
		return nil
	}, args...)
	return first, err
}

func bind(args []any) []driver.NamedValue {
	if len(args) == 0 {
		return nil
	}
	values := make([]driver.NamedValue, len(args))
	for i, a := range args {
		values[i].Ordinal = i + 1
		switch v := a.(type) {
		case Ino:
			values[i].Value = int64(v)
		case int:
			values[i].Value = int64(v)
		case uint32:
			values[i].Value = int64(v)
		default:
			values[i].Value = a // int64, string, []byte, nil
		}
	}
	return values
}
