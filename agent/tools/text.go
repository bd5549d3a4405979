package tools

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// A lineWriter builds a text of whole lines.
type lineWriter struct{ strings.Builder }

// addText adds text, and ends its last line.
func (w *lineWriter) addText(text string) {
	w.WriteString(text)
	if text != "" && !strings.HasSuffix(text, "\n") {
		w.WriteByte('\n')
	}
}

// addLine adds a formatted line.
func (w *lineWriter) addLine(format string, args ...any) {
	fmt.Fprintf(w, format, args...)
	w.WriteByte('\n')
}

// addStreams adds the output of a command.
func (w *lineWriter) addStreams(stdout, stderr string) {
	w.addText(stdout)
	if stderr != "" {
		w.addLine("stderr:")
		w.addText(stderr)
	}
}

// endText ends the text with a note, and returns it without the last line end.
func (w *lineWriter) endText(n note) string {
	w.addText(n.Note)
	return strings.TrimSuffix(w.String(), "\n")
}

func (o openOutput) formatText() string {
	var w lineWriter
	w.addLine("The sandbox is ready. %s", o.About)
	return w.endText(o.note)
}

func (o closeOutput) formatText() string {
	if o.Closed {
		return "The sandbox is removed."
	}
	return "There was no sandbox."
}

func (o execOutput) formatText() string {
	var w lineWriter
	w.addStreams(o.Stdout, o.Stderr)
	if o.ExitCode == nil {
		w.addLine("The command runs in the background as process %s.", o.ProcessID)
	} else {
		w.addLine("exit code %d", *o.ExitCode)
		if o.ProcessID != "" {
			w.addLine("process_id %s", o.ProcessID)
		}
	}
	return w.endText(o.note)
}

func (o processOutput) formatText() string {
	var w lineWriter
	w.addStreams(o.Stdout, o.Stderr)
	if o.ExitCode != nil {
		w.addLine("exit code %d", *o.ExitCode)
	} else {
		w.addLine("process %s still runs", o.ProcessID)
	}
	if o.ExitCode == nil || o.Truncated {
		w.addLine("read so far: stdout_offset %d, stderr_offset %d", o.StdoutOffset, o.StderrOffset)
	}
	return w.endText(o.note)
}

func (o writeOutput) formatText() string {
	var w lineWriter
	w.addLine("Sent %d bytes to process %s.", o.Written, o.ProcessID)
	return w.endText(o.note)
}

func (o killOutput) formatText() string {
	return fmt.Sprintf("Sent %s to process %s.", o.Signal, o.ProcessID)
}

func (o fileOutput) formatText() string {
	var w lineWriter
	w.addLine("Wrote %s, %d bytes.", o.Path, o.SizeBytes)
	return w.endText(o.note)
}

func (o readFileOutput) formatText() string {
	var w lineWriter
	if o.Encoding == encodingBase64 {
		w.addLine("base64 of %s, %d bytes:", o.Path, o.SizeBytes)
	}
	if o.Line > 0 {
		w.addText(numberLines(o.Content, o.Line))
	} else {
		w.addText(o.Content)
	}
	return w.endText(o.note)
}

func (o listOutput) formatText() string {
	var w lineWriter
	for _, e := range o.Entries {
		size, name := "", printableName(e.Name)
		switch {
		case e.SizeBytes != nil:
			size = strconv.FormatInt(*e.SizeBytes, 10)
		case e.Type == string(atoll.TypeDirectory):
			name += "/"
		case e.Target != "":
			name += " -> " + printableName(e.Target)
		}
		w.addLine("%s %9s %s", e.Mode, size, name)
	}
	if len(o.Entries) == 0 {
		w.addLine("%s has no entries to list.", o.Path)
	}
	return w.endText(o.note)
}

// printableName returns a file name on one line.
func printableName(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return strconv.Quote(name)
	}
	return name
}

func (o deleteOutput) formatText() string {
	var w lineWriter
	w.addLine("Deleted %s.", o.Path)
	return w.endText(o.note)
}

func (o editOutput) formatText() string {
	var w lineWriter
	w.addLine("Replacements in %s: %d", o.Path, o.Replacements)
	w.addText(o.Diff)
	return w.endText(o.note)
}

func (o searchOutput) formatText() string {
	var w lineWriter
	for _, x := range o.Matches {
		switch {
		case x.Line > 0:
			w.addLine("%s:%d:%s", printableName(x.Path), x.Line, x.Text)
		case x.Type == string(atoll.TypeDirectory):
			w.addLine("%s/", printableName(x.Path))
		default:
			w.addLine("%s", printableName(x.Path))
		}
	}
	if len(o.Matches) == 0 {
		w.addLine("Nothing was found.")
	}
	if o.Next > 0 {
		w.addLine("There may be more: offset %d searches on.", o.Next)
	}
	return w.endText(o.note)
}

func (o portOutput) formatText() string {
	var w lineWriter
	w.addLine("%s", o.URL)
	return w.endText(o.note)
}

func (o runOutput) formatText() string {
	var w lineWriter
	w.addStreams(o.Stdout, o.Stderr)
	exit := fmt.Sprintf("exit code %d", o.ExitCode)
	w.addLine("%s", exit)
	if !strings.HasSuffix(o.Error, strings.TrimPrefix(exit, "exit")) { // it says more than the line above
		w.addText(o.Error)
	}
	for _, f := range o.Artifacts {
		switch f.Encoding {
		case "":
			w.addLine("file %s, %d bytes", printableName(f.Path), f.SizeBytes)
			continue
		case encodingBase64:
			w.addLine("file %s, %d bytes, as base64:", printableName(f.Path), f.SizeBytes)
		default:
			w.addLine("file %s, %d bytes:", printableName(f.Path), f.SizeBytes)
		}
		w.addText(f.Content)
	}
	return w.endText(o.note)
}
