package tools

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
)

// DefaultMaxOutput is the default of Options.MaxOutput, in bytes of JSON.
const DefaultMaxOutput = 100_000

// An outputInput is part of the input of tools with much output.
type outputInput struct {
	MaxOutput int `json:"max_output,omitempty" jsonschema:"the most bytes to return"`
}

// describeOutput completes the schema of max_output.
func (k *Kit) describeOutput(p map[string]*jsonschema.Schema) { k.describeLimit(p["max_output"]) }

// describeLimit completes the schema of a limit of output.
func (k *Kit) describeLimit(s *jsonschema.Schema) {
	s.Description += fmt.Sprintf(", up to %d", k.opts.MaxOutput)
	s.Minimum, s.Default = jsonschema.Ptr(1.0), fmt.Appendf(nil, "%d", k.opts.OutputLimit)
}

// outputLimit returns the limit of a call that asks for this many bytes.
func (k *Kit) outputLimit(asked int) (int, error) {
	switch {
	case asked < 0:
		return 0, refusalErrorf(atoll.ErrInvalid, "max_output %d: must be from 1 to %d", asked, k.opts.MaxOutput)
	case asked == 0:
		asked = k.opts.OutputLimit
	}
	return min(asked, k.opts.MaxOutput), nil
}

// splitLimit divides a limit between two texts of these sizes: one that needs less than
// half leaves the rest to the other.
func splitLimit(limit, one, other int) (int, int) {
	switch half := limit / 2; {
	case one <= half:
		return one, limit - one
	case other <= limit-half:
		return limit - other, other
	default:
		return half, limit - half
	}
}

// fitOutput shortens the output of a command to limit bytes.
func fitOutput(r *jobs.Ran, limit int) (stdout, stderr string, truncated bool) {
	one, other := splitLimit(limit, r.Stdout.Size(), r.Stderr.Size())
	r.Stdout, r.Stderr = r.Stdout.Shorten(one), r.Stderr.Shorten(other)
	return r.Stdout.String(), r.Stderr.String(), r.Stdout.Omitted > 0 || r.Stderr.Omitted > 0
}

// addRest adds to out how to read the output of a command that was left out.
func (c *call) addRest(ctx context.Context, d *sandboxState, r *jobs.Ran, out *execOutput) {
	if !out.Truncated {
		return
	}
	const toFile = "redirect it to a file, and read parts of that with sandbox_fs_read"
	files := ""
	st, err := statusOf(ctx, d, r.Process)
	for _, s := range []struct {
		name   string
		text   jobs.Text
		oldest int64
	}{{"stdout", r.Stdout, st.Stdout.Oldest}, {"stderr", r.Stderr, st.Stderr.Oldest}} {
		first := int64(len(s.text.Data))
		from, behind := max(first, s.oldest), first+s.text.Omitted
		switch {
		case s.text.Omitted == 0:
		case s.text.File != "":
			files = "Read parts of such a file with sandbox_fs_read (line, lines), or search it with grep."
		case err != nil || from >= behind:
			out.appendNote("%d bytes of %s were left out: %s.", s.text.Omitted, s.name, toFile)
		case from > first:
			out.ProcessID = r.Process
			out.appendNote("%d bytes of %s were left out: sandbox_process_read with this process_id and %[2]s_offset %d reads the last %d of them; for all, %s.",
				s.text.Omitted, s.name, from, behind-from, toFile)
		default:
			out.ProcessID = r.Process
			out.appendNote("%d bytes of %s were left out: sandbox_process_read with this process_id and %[2]s_offset %d reads them.", s.text.Omitted, s.name, from)
		}
	}
	if files != "" {
		out.appendNote("%s", files)
	}
}

// appendNote puts a sentence behind the note.
func (n *note) appendNote(format string, args ...any) {
	n.Note = strings.TrimSpace(n.Note + " " + fmt.Sprintf(format, args...))
}

// readPart returns what a stream of a background command has printed, within limit
// bytes, and the offset behind it. A first look has the end, too; from an offset on
// everything comes in order.
func (o *processOutput) readPart(name string, text jobs.Text, offset int64, inOrder bool, limit int) (string, int64) {
	if !inOrder {
		text = text.Shorten(limit)
		if o.Running { // the next call returns the rest of a character
			text.Data, text.End = text.Data[:wholeLast(text.Data, text.End, text.Omitted)], text.End[:jobs.Whole(text.End)]
		}
		next := offset + int64(len(text.Data)) + text.Omitted + int64(len(text.End))
		if text.Omitted > 0 {
			o.Truncated = true
			o.appendNote("%d bytes of %s were left out: %[2]s_offset %d reads them.", text.Omitted, name, offset+int64(len(text.Data)))
		}
		return text.String(), next
	}
	n := len(text.Data)
	switch {
	case text.Omitted > 0 || text.Size() > limit:
		if n = jobs.FitStart(text.Data, limit); n == 0 { // a character at least, so that the next call goes on
			_, n = utf8.DecodeRune(text.Data)
		}
	case o.Running:
		n = jobs.Whole(text.Data)
	}
	if rest := int64(len(text.Data)-n) + text.Omitted; text.Omitted > 0 || text.Size() > limit {
		o.Truncated = true
		o.appendNote("%d more bytes of %s follow: %[2]s_offset %d reads on.", rest, name, offset+int64(n))
	}
	return jobs.Text{Data: text.Data[:n]}.String(), offset + int64(n)
}

// wholeLast returns the length of data without an incomplete character at its end, if
// nothing follows it.
func wholeLast(data, end []byte, omitted int64) int {
	if omitted > 0 || len(end) > 0 {
		return len(data)
	}
	return jobs.Whole(data)
}
