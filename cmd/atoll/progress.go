package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/printable"
)

// startProgress returns a function that shows the progress of long work: with a bar on a terminal, otherwise in plain
// lines. The function is nil if quiet is set. The caller must call end, also after an error.
func (a *app) startProgress(quiet bool) (show func(atoll.Progress), end func()) {
	if quiet {
		return nil, func() {}
	}
	if isTerminal(a.stderr) {
		bar := &progressBar{app: a}
		return bar.showProgress, bar.clearLine
	}
	lines := &progressLines{print: func(line string) { a.printMessage("%s", line) }, first: firstLine, every: nextLine}
	return lines.showProgress, lines.startLines()
}

// A progressBar updates one line of a terminal.
type progressBar struct {
	app   *app
	last  time.Time
	phase string
	shown bool
}

func (b *progressBar) showProgress(p atoll.Progress) {
	if p.Phase == b.phase && time.Since(b.last) < 100*time.Millisecond {
		return
	}
	b.phase, b.last, b.shown = p.Phase, time.Now(), true
	cols := int(b.app.terminalSize().Cols)
	fmt.Fprintf(b.app.stderr, "\r\x1b[K%s", progressLine(p, cols-1))
}

func (b *progressBar) clearLine() {
	if b.shown {
		fmt.Fprint(b.app.stderr, "\r\x1b[K")
	}
}

// When progressLines prints: nothing about work that takes only a moment.
const (
	firstLine = 5 * time.Second
	nextLine  = 15 * time.Second
)

// progressLines prints a line from time to time, for logs.
type progressLines struct {
	print        func(line string)
	first, every time.Duration // time until the first line, and between lines

	mu      sync.Mutex
	present atoll.Progress // guarded by mu
}

// startLines prints lines until end is called.
func (l *progressLines) startLines() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var printing sync.WaitGroup
	printing.Go(func() {
		for wait := l.first; ; wait = l.every {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			if line := l.formatLine(); line != "" {
				l.print(line)
			}
		}
	})
	return func() {
		cancel()
		printing.Wait()
	}
}

func (l *progressLines) showProgress(p atoll.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.present = p
}

// formatLine returns the present progress as text; "" before there is any.
func (l *progressLines) formatLine() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(strings.Join([]string{describePhase(l.present), formatDone(l.present)}, " "))
}

// describePhase returns the step and the phase of a progress.
func describePhase(p atoll.Progress) string {
	text := printable.Escape(strings.TrimSpace(p.Phase+" "+p.Item), "")
	if p.Steps > 0 {
		return fmt.Sprintf("[%d/%d] %s", p.Step, p.Steps, text)
	}
	return text
}

// formatDone returns how much is done; "" if that is unknown.
func formatDone(p atoll.Progress) string {
	switch {
	case p.Total > 0:
		return byteCount(p.Done) + " of " + byteCount(p.Total)
	case p.Done > 0:
		return byteCount(p.Done)
	}
	return ""
}

// progressLine describes p in at most cols columns, with a bar if the total is known.
func progressLine(p atoll.Progress, cols int) string {
	line := describePhase(p)
	if p.Total > 0 {
		const width = 20
		full := int(min(p.Done, p.Total) * width / p.Total)
		line += fmt.Sprintf(" [%s%s]", strings.Repeat("=", full), strings.Repeat(" ", width-full))
	}
	line = strings.TrimSpace(line + " " + formatDone(p))
	if r := []rune(line); len(r) > cols && cols > 0 {
		return string(r[:cols])
	}
	return line
}

// watchCreation says from time to time that a creation takes long, until end is called.
func (a *app) watchCreation(spec *atoll.Spec, quiet bool) (end func()) {
	if quiet {
		return func() {}
	}
	phase := "still creating the sandbox"
	if spec.Image != "" && spec.Image != hostImage {
		phase += " from the image " + spec.Image
	}
	lines := &progressLines{print: func(line string) { a.printMessage("%s", line) }, first: 2 * firstLine, every: 2 * nextLine}
	lines.showProgress(atoll.Progress{Phase: phase})
	return lines.startLines()
}
