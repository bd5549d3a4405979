package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll/internal/printable"
)

// liveInterval is the time between two drawings of a live table.
const liveInterval = 2 * time.Second

// showLive draws the table of list on the terminal, at once and then again and again, until ctx ends. Then it returns
// nil.
func (a *app) showLive(ctx context.Context, list func(ctx context.Context) ([][]string, error)) error {
	tick := time.NewTicker(liveInterval)
	defer tick.Stop()
	height := 0
	for {
		rows, err := list(ctx)
		if ctx.Err() != nil {
			return nil // interrupted by the user
		}
		if err != nil {
			return err
		}
		size := a.terminalSize()
		frame := drawFrame(rows, height, int(size.Rows), int(size.Cols))
		if _, err := a.stdout.WriteString(frame); err != nil {
			return err
		}
		height = strings.Count(frame, "\n")
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// drawFrame returns the text that draws a table over one of height lines, cut to the size of the terminal.
func drawFrame(rows [][]string, height, maxLines, maxColumns int) string {
	var table, frame strings.Builder
	w := tabwriter.NewWriter(&table, 0, 8, 3, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, printable.Escape(cell, ""))
		}
		fmt.Fprint(w, "\n")
	}
	w.Flush() // a strings.Builder returns no error
	if height > 0 {
		fmt.Fprintf(&frame, "\x1b[%dA", height)
	}
	for i, line := range strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n") {
		if i >= maxLines-1 {
			break
		}
		if utf8.RuneCountInString(line) > maxColumns {
			line = string([]rune(line)[:maxColumns-1]) + "…"
		}
		frame.WriteString("\r" + line + "\x1b[K\n")
	}
	frame.WriteString("\x1b[J")
	return frame.String()
}
