package tools

import (
	"bytes"
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
)

type editInput struct {
	Path       string     `json:"path"`
	OldText    string     `json:"old_text,omitempty" jsonschema:"exactly as in the file, with enough context to occur once"`
	NewText    string     `json:"new_text,omitempty"`
	ReplaceAll bool       `json:"replace_all,omitempty" jsonschema:"replace every occurrence"`
	Edits      []textEdit `json:"edits,omitempty" jsonschema:"several edits instead, made in order; all or none"`
}

type textEdit struct {
	OldText    string `json:"old_text"`
	NewText    string `json:"new_text"`
	ReplaceAll bool   `json:"replace_all,omitempty"`
}

type editOutput struct {
	Path         string `json:"path"`
	Replacements int    `json:"replacements"`
	SizeBytes    int64  `json:"size_bytes"`
	Diff         string `json:"diff,omitempty" jsonschema:"what changed, as a unified diff"`
	note
}

func editFile(ctx context.Context, c *call, in editInput) (out editOutput, err error) {
	edits := in.Edits
	switch {
	case len(edits) == 0:
		edits = []textEdit{{in.OldText, in.NewText, in.ReplaceAll}}
	case in.OldText != "" || in.NewText != "":
		return out, refusalErrorf(atoll.ErrInvalid, "old_text and new_text cannot be combined with edits: put all of them into edits")
	}
	for _, e := range edits {
		if e.OldText == "" {
			return out, refusalErrorf(atoll.ErrInvalid, "old_text is empty: set the text to replace, or write the file with sandbox_fs_write")
		}
	}
	said, err := c.withFile(ctx, in.Path, func(d *sandboxState, p fileRef) error {
		unlock, err := d.editLocks.Lock(ctx, p.path) // otherwise one of two concurrent edits would be lost
		if err != nil {
			return err
		}
		defer unlock()
		most := c.k.limits.MaxFileSize
		data, info, err := p.readRange(ctx, 0, most+1)
		if err != nil {
			return err
		}
		if int64(len(data)) > most {
			return refusalErrorf(atoll.ErrInvalid, "%s is larger than the %d bytes that the file tools work on: use sandbox_exec", p.path, most)
		}
		changed, count := data, 0
		for i, e := range edits {
			which := ""
			if len(edits) > 1 {
				which = fmt.Sprintf("edit %d of %d, and no edit was made: ", i+1, len(edits))
			}
			var n int
			if changed, n, err = e.applyTo(changed, p.path, most); err != nil {
				return refusalErrorf(atoll.KindOf(err), "%s%w", which, errorCause(err))
			}
			count += n
		}
		info, err = c.writeLimited(ctx, d, p, changed, info.Mode&0o777)
		out = editOutput{Path: p.path, Replacements: count, SizeBytes: info.Size, Diff: diffTexts(data, changed)}
		return err
	})
	out.addNote(said)
	return out, err
}

// applyTo returns the content of a file after the edit, and the number of replacements.
func (e textEdit) applyTo(data []byte, name string, most int64) ([]byte, int, error) {
	old := []byte(e.OldText)
	n := bytes.Count(data, old)
	switch {
	case n == 0:
		return nil, 0, refusalErrorf(atoll.ErrInvalid, "%s does not contain this old_text: read the file, and copy the text exactly, with spaces and line ends", name)
	case n > 1 && !e.ReplaceAll:
		return nil, 0, refusalErrorf(atoll.ErrInvalid, "%s contains this old_text %d times: add more of the text around it, or set replace_all", name, n)
	}
	if size := int64(len(data)) + int64(n)*int64(len(e.NewText)-len(old)); size > most { // before allocating it
		return nil, 0, tooLarge(size, most)
	}
	return bytes.ReplaceAll(data, old, []byte(e.NewText)), n, nil
}

// Bounds of diffs.
const (
	maxDiffed = 1 << 20 // bytes of a file
	maxDiff   = 4000    // bytes of JSON of a diff
)

// diffTexts returns the changes between two contents of a file, or a part of them if they are many; "" for
// large files, and for those that are not text.
func diffTexts(before, after []byte) string {
	if max(len(before), len(after)) > maxDiffed || !utf8.Valid(before) || !utf8.Valid(after) {
		return ""
	}
	all := diff.Diff("before", before, "after", after)
	if i := bytes.Index(all, []byte("\n@@")); i >= 0 {
		all = all[i+1:] // without the names
	}
	return jobs.Text{Data: all}.Shorten(maxDiff).String()
}
