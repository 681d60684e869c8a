package turnbody

import (
	"strings"
	"testing"
)

// BenchmarkParse is a turn of the largest size the gateway takes, mostly one long string, and one
// of many small values.
func BenchmarkParse(b *testing.B) {
	for name, body := range map[string]string{
		"text":   `{"messages":[{"blocks":[{"type":"text","text":"` + strings.Repeat("word ", 3<<20) + `"}]}]}`,
		"values": `{"messages":[{"blocks":[{"type":"text","_meta":{"a":[` + strings.Repeat(`{"k":1},`, 2<<20) + `0]}}]}]}`,
		"small":  `{"messages":[{"blocks":[{"type":"text","text":"Hello"}]}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			raw := []byte(body)
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
