package bench

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	samples := []time.Duration{5, 1, 4, 2, 3}
	for p, want := range map[float64]time.Duration{0: 1, 20: 1, 21: 2, 50: 3, 99: 5, 100: 5} {
		if got := percentile(samples, p); got != want {
			t.Errorf("percentile %g of %v = %d, want %d", p, samples, got, want)
		}
	}
	if got := percentile([]float64{7}, 99); got != 7 {
		t.Errorf("percentile of one sample = %g, want 7", got)
	}
}

func TestParseBenchmark(t *testing.T) {
	const line = "BenchmarkRelay-2   \t 300\t      4101 ns/op\t 998.70 MB/s\t       8 B/op\t       1 allocs/op\n"
	for name, c := range map[string]struct {
		text string
		want copied
		err  string
	}{
		"whole output":   {"goos: linux\nBenchmarkRelayLong-2 1 1 ns/op\n" + line + "PASS\n", copied{998.7, 1}, ""},
		"one processor":  {strings.Replace(line, "-2", "", 1), copied{998.7, 1}, ""},
		"no such line":   {"PASS\n", copied{}, "no line"},
		"no throughput":  {strings.Replace(line, "MB/s", "GB/s", 1), copied{}, "no throughput"},
		"not a number":   {strings.Replace(line, "998.70", "NaN.", 1), copied{}, "read the benchmark's line"},
		"no allocations": {strings.Replace(line, "allocs/op", "", 1), copied{}, "no allocations"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseBenchmark(c.text, "BenchmarkRelay")
			if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %+v, %v, want %+v, an error with %q", got, err, c.want, c.err)
			}
		})
	}
}

// The shape is public: api.md.
func TestResultShape(t *testing.T) {
	for _, c := range []struct {
		result Result
		want   string
	}{
		{result("warm_turn_p50", "ms", 3, 2), `{"name":"warm_turn_p50","value":3,"unit":"ms","baseline":2,"ratio":1.5}`},
		{result("relay_allocations", "allocations/message", 0, 0), `{"name":"relay_allocations","value":0,"unit":"allocations/message","baseline":0,"ratio":null}`},
	} {
		got, err := json.Marshal(c.result)
		if err != nil || string(got) != c.want {
			t.Errorf("got %s, %v, want %s", got, err, c.want)
		}
	}
}

func TestValidate(t *testing.T) {
	good := Options{Turns: 1, PerConversation: 1, Rounds: 1, Files: 1, Entries: 1, FlatFiles: 1000, StreamMiB: 1, StreamRounds: 1}
	if err := good.Validate(); err != nil {
		t.Errorf("Validate = %v, want nil", err)
	}
	unknown, none, small := good, good, good
	unknown.Only, none.Turns = []string{"relay", "relais"}, 0
	small.FlatFiles = 999
	for want, o := range map[string]Options{`no benchmark "relais"`: unknown, "at least 1": none, "at least 1, 1, 1000": small} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v, want an error with %q", err, want)
		}
	}
}
