package main

import (
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// colorValue is the flag --color.
type colorValue string

func (c *colorValue) Set(s string) error {
	if !slices.Contains([]string{"auto", "always", "never"}, s) {
		return usageErrorf("%q: use auto, always or never", s)
	}
	*c = colorValue(s)
	return nil
}

func (c *colorValue) String() string { return string(*c) }

func (c *colorValue) Type() string { return "when" }

// useColor reports whether tables on stdout have colours.
func (a *app) useColor() bool {
	switch a.color {
	case "always":
		return true
	case "never":
		return false
	}
	dull := slices.ContainsFunc(a.env, func(kv string) bool {
		return kv == "TERM=dumb" || strings.HasPrefix(kv, "NO_COLOR=") && kv != "NO_COLOR="
	})
	return !dull && isTerminal(a.stdout)
}

// The colours of states. All have the same length, so that the columns of a table remain aligned.
const (
	colorPlain = "\x1b[39m"
	colorGood  = "\x1b[32m"
	colorWait  = "\x1b[33m"
	colorBad   = "\x1b[31m"
)

// stateColor returns the colour of a state, which text may follow in parentheses.
func stateColor(state string) string {
	word, _, _ := strings.Cut(state, " ")
	switch atoll.State(word) {
	case atoll.StateRunning:
		return colorGood
	case atoll.StatePaused, atoll.StateCreating:
		return colorWait
	case atoll.StateFailed, "error":
		return colorBad
	}
	return colorPlain
}

// colorStates colours the cells below the header STATE.
func colorStates(rows [][]string) {
	i := slices.Index(rows[0], "STATE")
	if i < 0 {
		return
	}
	for _, row := range rows {
		row[i] = stateColor(row[i]) + row[i] + colorPlain
	}
}
