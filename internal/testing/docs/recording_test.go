//go:build linux

package docs_test

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// scenes are the lines of the recording in README.md: comments, and commands with what they print today.
var scenes = []string{
	"# A computer for an agent: a kernel of its own, none of your files, no network",
	"atoll create --name dev",
	"atoll exec dev -- uname -sr",
	"atoll exec dev -- ls /home",
	"atoll exec dev -- curl -sS https://example.com",
	"# It keeps the agent's work, also over a stop, a crash of the server or a reboot",
	`atoll exec dev -- sh -c 'echo "agents need computers" > notes'`,
	"atoll stop dev && atoll start dev",
	"atoll exec dev -- cat notes",
	"atoll ls",
}

// unstable are the parts of outputs that differ from run to run, and what the recording has in their place.
var unstable = []struct {
	part  *regexp.Regexp
	fixed string
}{
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "d44da7c0a5334db0adafaebf9bb7153a"},
	{regexp.MustCompile(`(?m)^[0-9a-f]{12} `), "d44da7c0a533 "},
	{regexp.MustCompile(`\b(now|[0-9]+[smh] ago) +`), "9s ago    "}, // with the spaces that fill its column
	{regexp.MustCompile(`[0-9.]+-gvisor`), "4.19.0-gvisor"},
}

// TestRecording checks that the commands in the recording print what it shows. With -update, it
// draws the recording anew.
func TestRecording(t *testing.T) {
	testenv.Need(t, testenv.Root)
	const path = "../../../docs/public/recording.svg"
	buildAtoll(t)
	shell := newShell(t, "XDG_STATE_HOME", "XDG_CONFIG_HOME")
	defer func() {
		if out, err := shell("atoll rm -f -v dev").CombinedOutput(); err != nil {
			t.Errorf("atoll rm: %v\n%s", err, out)
		}
	}()
	var frames []frame
	for _, scene := range scenes {
		f := frame{typed: scene}
		if !strings.HasPrefix(scene, "#") {
			out, err := shell(scene).CombinedOutput()
			if failed := strings.Contains(scene, "curl"); (err != nil) != failed {
				t.Fatalf("%s: %v\n%s", scene, err, out)
			}
			text := string(out)
			for _, u := range unstable {
				text = u.part.ReplaceAllString(text, u.fixed)
			}
			f.printed = strings.Split(strings.TrimRight(text, "\n"), "\n")
		}
		frames = append(frames, f)
	}
	drawn := drawRecording(frames)
	if *update {
		if err := os.WriteFile(path, drawn, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, drawn) {
		t.Errorf("the commands print something else today (%v): run go test ./internal/testing/docs -run TestRecording -update", err)
	}
	if err := xml.Unmarshal(drawn, new(struct{})); err != nil {
		t.Error(err)
	}
}

// A frame is a line that somebody types, and the lines that a command prints.
type frame struct {
	typed   string
	printed []string
}

// The measures of the recording, in pixels and in time.
const (
	glyphWidth, lineHeight        = 8.2, 20
	marginLeft, marginTop         = 20, 56
	recordingWidth                = 760
	typing                        = 28 * time.Millisecond // for one character
	answering, reading, remaining = 350 * time.Millisecond, 1100 * time.Millisecond, 6 * time.Second
)

// drawRecording draws frames as an SVG that plays them again and again. Each line appears by an animation
// of its own, whose length is that of the whole recording. If a reader prefers no motion, all lines are there at once.
func drawRecording(frames []frame) []byte {
	var lines, rules bytes.Buffer
	var at, total time.Duration
	for _, f := range frames {
		total += lengthOf(f)
	}
	total += remaining
	percent := func(d time.Duration) float64 { return 100 * d.Seconds() / total.Seconds() }
	row := 0
	addLine := func(class, text string, begin, end time.Duration) {
		width := glyphWidth * float64(utf8.RuneCountInString(text))
		fmt.Fprintf(&lines, `  <text class="%s" id="l%d" x="%d" y="%d" textLength="%.1f">`, class, row, marginLeft, marginTop+lineHeight*row, width)
		_ = xml.EscapeText(&lines, []byte(text)) // a Buffer takes it all
		lines.WriteString("</text>\n")
		fmt.Fprintf(&rules, "    #l%d { animation: k%d %.2fs infinite; }\n", row, row, total.Seconds())
		if begin == end {
			fmt.Fprintf(&rules, "    @keyframes k%d { 0%%, %.2f%% { opacity: 0 } %.2f%%, 100%% { opacity: 1 } }\n", row, percent(begin), percent(begin)+0.01)
		} else {
			fmt.Fprintf(&rules, "    @keyframes k%d { 0%% { clip-path: inset(-4px 100%% -4px 0) } %.2f%% { clip-path: inset(-4px 100%% -4px 0); animation-timing-function: steps(%d) } %.2f%%, 100%% { clip-path: inset(-4px 0 -4px 0) } }\n",
				row, percent(begin), utf8.RuneCountInString(text), percent(end))
		}
		row++
	}
	for i, f := range frames {
		class, text, began := "command", "$ "+f.typed, at
		if f.printed == nil {
			class, text = "comment", f.typed
			if i > 0 {
				row++
			}
		}
		typed := began + typing*time.Duration(len(f.typed))
		addLine(class, text, began, typed)
		for _, line := range f.printed {
			if line != "" {
				addLine("output", line, typed+answering, typed+answering)
			}
		}
		at += lengthOf(f)
	}
	height := marginTop + lineHeight*row
	var svg bytes.Buffer
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="title">
  <title id="title">A terminal: a sandbox is created, has its own kernel, no files of the user and no network, and keeps its work over a stop.</title>
  <style>
    text { font: 13.6px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; }
    .command { fill: #ffffff; }
    .output { fill: #b6c4d1; }
    .comment { fill: #3ebd93; }
%s    @media (prefers-reduced-motion: reduce) { text { animation: none !important; } }
  </style>
  <rect width="%d" height="%d" rx="10" fill="#161f29"/>
  <circle cx="22" cy="20" r="5.5" fill="#f0625d"/><circle cx="41" cy="20" r="5.5" fill="#f4bd4f"/><circle cx="60" cy="20" r="5.5" fill="#3ebd93"/>
%s</svg>
`, recordingWidth, height, rules.String(), recordingWidth, height, lines.String())
	return svg.Bytes()
}

// lengthOf returns how long a frame takes to be typed, printed and read.
func lengthOf(f frame) time.Duration {
	return typing*time.Duration(len(f.typed)) + answering + reading
}
