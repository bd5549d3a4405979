package tools

import (
	"context"
	"fmt"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

func listFiles(ctx context.Context, c *call, in listInput) (out listOutput, err error) {
	if in.Path == "" {
		in.Path = "."
	}
	most, err := c.k.outputLimit(in.MaxOutput)
	if err != nil {
		return out, err
	}
	if in.Offset < 0 {
		return out, refusalErrorf(atoll.ErrInvalid, "offset %d: use next_offset of the last answer, or 0", in.Offset)
	}
	said, err := c.withFile(ctx, in.Path, func(_ *sandboxState, p fileRef) error {
		all, err := p.List(ctx, p.path, in.Recursive)
		if err != nil {
			return err
		}
		out.Path, out.Entries, out.Total = p.path, []listEntry{}, len(all)
		first := min(in.Offset, len(all))
		for _, f := range all[first:] {
			e := entryOf(p.path, f)
			if most -= sizeInList(e); most < 0 && len(out.Entries) > 0 {
				out.Truncated, out.Next = true, first+len(out.Entries)
				break
			}
			out.Entries = append(out.Entries, e)
		}
		return nil
	})
	out.addNote(said)
	if out.Truncated {
		out.appendNote("%d more entries follow: offset %d lists on. Or list a directory below, or search by name.", out.Total-out.Next, out.Next)
	}
	return out, err
}

// sizeInList returns the size of v in a list in JSON.
func sizeInList(v any) int {
	data, err := marshalPlain(v)
	if err != nil {
		panic(err) // our own types are valid
	}
	return len(data) + 1
}

func entryOf(dir string, f atoll.FileInfo) listEntry {
	name := strings.TrimPrefix(strings.TrimPrefix(f.Path, dir), "/")
	e := listEntry{Name: strings.ToValidUTF8(name, "\ufffd"), Type: string(f.Type), Mode: fmt.Sprintf("%04o", f.Mode), Target: strings.ToValidUTF8(f.Target, "\ufffd")}
	if f.Type == atoll.TypeFile {
		e.SizeBytes = &f.Size
	}
	return e
}
