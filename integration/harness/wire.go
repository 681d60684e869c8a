package harness

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Wire sends one request exactly as it is spelled to the first gateway: no client cleans the target, which may hold any byte but a
// space or a line end.
func (c *Client) Wire(ctx context.Context, method, target string, header http.Header, body string) (Answer, error) {
	address := strings.TrimPrefix(c.bases[0], "http://")
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return Answer{}, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", method, target, address)
	if c.token != "" && header.Get("Authorization") == "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", c.token)
	}
	for name, values := range header {
		for _, v := range values {
			fmt.Fprintf(&b, "%s: %s\r\n", name, v)
		}
	}
	if body != "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n" + body)
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return Answer{}, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, got}, err
}
