//go:build race

package relay

// The race detector makes a GiB take minutes.
const raceEnabled = true
