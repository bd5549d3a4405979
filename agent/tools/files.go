package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/seed46cd37a8/atoll"
)

// A fileRef is a file in the confined file system of one of the file tools' roots.
type fileRef struct {
	atoll.FS
	root string
	path string // absolute
}

// resolvePath resolves a path. It returns an error for blocked paths and those outside
// the roots; the FS follows links within the root.
func (c *call) resolvePath(d *sandboxState, name string) (fileRef, error) {
	if name == "" {
		return fileRef{}, refusalErrorf(atoll.ErrInvalid, "path is empty: name a file, like src/main.py")
	}
	if strings.ContainsRune(name, 0) {
		return fileRef{}, refusalErrorf(atoll.ErrInvalid, "path %q: contains a NUL byte", name)
	}
	abs := name
	if !path.IsAbs(abs) {
		abs = path.Join(d.workdir, abs)
	}
	abs = path.Clean(abs)
	for _, b := range c.k.opts.Blocked {
		if isBelow(b, abs) {
			return fileRef{}, refusalErrorf(atoll.ErrDenied, "%s is blocked: the file tools do not touch %s", abs, path.Clean(b))
		}
	}
	roots := c.k.fileRoots(d.workdir)
	readable := roots
	if c.reads {
		readable = append(slices.Clone(roots), spoolDir)
	}
	for _, root := range readable {
		if isBelow(root, abs) {
			if b := c.k.blockedIn(root); b != "" { // another program has made the sandbox
				return fileRef{}, refusalErrorf(atoll.ErrDenied, "%s has %s in it, which is blocked: the file tools do not work there, use sandbox_exec", root, b)
			}
			return fileRef{atoll.SubFiles(atoll.Files(d.sandbox), root), root, abs}, nil
		}
	}
	return fileRef{}, refusalErrorf(atoll.ErrDenied, "%s is outside of %s, where the file tools work: use sandbox_exec for other places", abs, strings.Join(roots, ", "))
}

// fileRoots returns the roots of the file tools, in a sandbox with that work directory.
func (k *Kit) fileRoots(workdir string) []string {
	if len(k.opts.Roots) == 0 {
		return []string{path.Clean(workdir)}
	}
	var roots []string
	for _, root := range k.opts.Roots {
		roots = append(roots, path.Clean(root))
	}
	return roots
}

// blockedIn returns the blocked path in a directory, to which links could lead; "" if
// there is none.
func (k *Kit) blockedIn(dir string) string {
	for _, b := range k.opts.Blocked {
		if isBelow(dir, b) {
			return path.Clean(b)
		}
	}
	return ""
}

// explainError adds advice to an error of the FS; errors of the tools already contain
// it.
func (p fileRef) explainError(err error) error {
	e, ok := errors.AsType[*atoll.Error](err)
	if ok && e.Op == "" {
		return err
	}
	switch atoll.KindOf(err) {
	case atoll.ErrInvalid:
		return refusalErrorf(atoll.ErrInvalid, "%s: %v: use sandbox_fs_list to see existing files", p.path, errorCause(err))
	case atoll.ErrExhausted:
		if ok && e.Op == "list" { // not a full disk
			return refusalErrorf(atoll.ErrExhausted, "%s: %v", p.path, errorCause(err))
		}
	case atoll.ErrDenied:
		return refusalErrorf(atoll.ErrDenied, "%s cannot be used by the file tools: it leads out of %s, or its owner does not let you (%v)", p.path, p.root, errorCause(err))
	case atoll.ErrNotExist:
		return refusalErrorf(atoll.ErrNotExist, "%s does not exist: use sandbox_fs_list to see existing files", p.path)
	case atoll.ErrUnsupported:
		return refusalErrorf(atoll.ErrUnsupported, "this sandbox has no file tools: use sandbox_exec")
	}
	return err
}

// errorCause returns the cause of an error without its operation.
func errorCause(err error) error {
	if e, ok := errors.AsType[*atoll.Error](err); ok && e.Err != nil {
		return e.Err
	}
	return err
}

// withFile calls do with the file at a path.
func (c *call) withFile(ctx context.Context, name string, do func(d *sandboxState, p fileRef) error) (note string, err error) {
	return c.withSandbox(ctx, func(d *sandboxState) error {
		p, err := c.resolvePath(d, name)
		if err != nil {
			return err
		}
		return p.explainError(do(d, p))
	})
}

// The encodings of file content.
const (
	encodingText   = "text"
	encodingBase64 = "base64"
)

type writeFileInput struct {
	Path     string `json:"path" jsonschema:"relative to the work directory, or absolute"`
	Content  string `json:"content"`
	Encoding string `json:"encoding,omitempty" jsonschema:"of content: text, or base64 for other data than UTF-8"`
	Mode     string `json:"mode,omitempty" jsonschema:"octal permissions, such as 0755 for a program"`
}

type fileOutput struct {
	Path      string `json:"path" jsonschema:"absolute"`
	SizeBytes int64  `json:"size_bytes"`
	note
}

type listInput struct {
	Path      string `json:"path,omitempty" jsonschema:"a directory; default is the work directory"`
	Recursive bool   `json:"recursive,omitempty"`
	Offset    int    `json:"offset,omitempty" jsonschema:"the first entry to return: next_offset of the last answer"`
	outputInput
}

type listEntry struct {
	Name      string `json:"name" jsonschema:"relative to the directory"`
	Type      string `json:"type" jsonschema:"file, directory, symlink or other"`
	SizeBytes *int64 `json:"size_bytes,omitempty" jsonschema:"of files"`
	Mode      string `json:"mode,omitempty" jsonschema:"permissions in octal"`
	Target    string `json:"target,omitempty" jsonschema:"of symlinks"`
}

type listOutput struct {
	Path      string      `json:"path"`
	Entries   []listEntry `json:"entries"`
	Total     int         `json:"total" jsonschema:"the number of all entries"`
	Truncated bool        `json:"truncated,omitempty" jsonschema:"more follow from next_offset on"`
	Next      int         `json:"next_offset,omitempty"`
	note
}

type deleteInput struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive,omitempty" jsonschema:"delete a directory with everything in it"`
}

type deleteOutput struct {
	Deleted bool   `json:"deleted"`
	Path    string `json:"path"`
	note
}

func fileTools(k *Kit) []*Tool {
	size := atoll.Bytes(k.limits.MaxFileSize).String()
	encodings := func(p map[string]*jsonschema.Schema) {
		p["encoding"].Enum, p["encoding"].Default = []any{encodingText, encodingBase64}, []byte(`"text"`)
	}
	return []*Tool{
		newTool(Tool{
			Name: "sandbox_fs_write", Title: "Write a file", Destructive: true, Idempotent: true,
			Description: fmt.Sprintf("Write a file in the sandbox. Missing directories are created, and an existing file is replaced. At most %s.", size),
		}, writeFile).refineInput(encodings),
		newTool(Tool{
			Name: "sandbox_fs_read", Title: "Read a file", ReadOnly: true, Idempotent: true,
			Description: "Read a file of the sandbox: text, or a PDF, or a PNG, JPEG, GIF or WebP image, to look at. A long file is returned in parts.",
		}, readFile).refineInput(func(p map[string]*jsonschema.Schema) {
			encodings(p)
			p["line"].Minimum, p["lines"].Minimum, p["offset"].Minimum = jsonschema.Ptr(1.0), jsonschema.Ptr(1.0), jsonschema.Ptr(0.0)
			k.describeLimit(p["max_bytes"])
		}),
		newTool(Tool{
			Name: "sandbox_fs_list", Title: "List a directory", ReadOnly: true, Idempotent: true,
			Description: "List a directory of the sandbox; with recursive, everything below it.",
		}, listFiles).refineInput(func(p map[string]*jsonschema.Schema) {
			p["offset"].Minimum = jsonschema.Ptr(0.0)
			k.describeOutput(p)
		}),
		newTool(Tool{
			Name: "sandbox_fs_delete", Title: "Delete a file", Destructive: true,
			Description: "Delete a file of the sandbox; with recursive, a directory.",
		}, deleteFile),
		newTool(Tool{
			Name: "sandbox_fs_edit", Title: "Edit a file", Destructive: true,
			Description: "Replace text in a file of the sandbox, once or by several edits. Each old_text must occur exactly once, unless replace_all is set.",
		}, editFile),
	}
}

func checkEncoding(encoding string) error {
	if encoding == "" || encoding == encodingText || encoding == encodingBase64 {
		return nil
	}
	return refusalErrorf(atoll.ErrInvalid, "encoding %q: use text or base64", encoding)
}

func writeFile(ctx context.Context, c *call, in writeFileInput) (out fileOutput, err error) {
	if err := checkEncoding(in.Encoding); err != nil {
		return out, err
	}
	data := []byte(in.Content)
	if in.Encoding == encodingBase64 {
		if data, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return out, refusalErrorf(atoll.ErrInvalid, "content is not valid base64: %w", err)
		}
	}
	var mode uint32
	if in.Mode != "" {
		bits, err := strconv.ParseUint(strings.TrimPrefix(in.Mode, "0o"), 8, 32)
		if err != nil || bits == 0 || bits > 0o777 {
			return out, refusalErrorf(atoll.ErrInvalid, "mode %q: write it in octal, like 0644 or 0755", in.Mode)
		}
		mode = uint32(bits)
	}
	said, err := c.withFile(ctx, in.Path, func(d *sandboxState, p fileRef) error {
		unlock, err := d.editLocks.Lock(ctx, p.path)
		if err != nil {
			return err
		}
		defer unlock()
		info, err := c.writeLimited(ctx, d, p, data, mode)
		out.Path, out.SizeBytes = info.Path, info.Size
		return err
	})
	out.addNote(said)
	return out, err
}

// writeLimited writes a file, within the limits of size and number.
func (c *call) writeLimited(ctx context.Context, d *sandboxState, p fileRef, data []byte, mode uint32) (atoll.FileInfo, error) {
	if most := c.k.limits.MaxFileSize; int64(len(data)) > most {
		return atoll.FileInfo{}, tooLarge(int64(len(data)), most)
	}
	done, err := d.reserveFile(p.path, c.k.limits.MaxFiles)
	if err != nil {
		return atoll.FileInfo{}, err
	}
	info, err := p.Write(ctx, p.path, bytes.NewReader(data), atoll.WriteOptions{Mode: mode})
	done(err == nil)
	return info, err
}

func tooLarge(size, most int64) error {
	return refusalErrorf(atoll.ErrInvalid, "the content is %d bytes: a file may have %d at most; write it in parts by sandbox_exec", size, most)
}

// reserveFile counts a file against the limit of written files; done tells whether it
// was written.
func (d *sandboxState) reserveFile(name string, most int) (done func(written bool), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.written[name]; ok {
		return func(bool) {}, nil
	}
	if len(d.written) >= most {
		return nil, refusalErrorf(atoll.ErrExhausted, "%d files were written with this tool already, which is the limit: delete some by sandbox_fs_delete, or create files with sandbox_exec", most)
	}
	d.written[name] = struct{}{}
	return func(written bool) {
		if !written {
			d.mu.Lock()
			delete(d.written, name) // only this name: it may be a directory
			d.mu.Unlock()
		}
	}, nil
}

// forgetFiles stops counting a written file, and all below it.
func (d *sandboxState) forgetFiles(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for file := range d.written {
		if isBelow(name, file) {
			delete(d.written, file)
		}
	}
}

func deleteFile(ctx context.Context, c *call, in deleteInput) (out deleteOutput, err error) {
	said, err := c.withFile(ctx, in.Path, func(d *sandboxState, p fileRef) error {
		if isBelow(p.path, d.workdir) || slices.Contains(c.k.opts.Roots, p.path) || p.path == p.root {
			return refusalErrorf(atoll.ErrDenied, "%s is the work directory or contains it: delete the files in it one by one", p.path)
		}
		err := p.removeFile(ctx, in.Recursive)
		if err == nil || atoll.KindOf(err) == atoll.ErrNotExist { // a command may have been faster
			d.forgetFiles(p.path)
		}
		out.Deleted, out.Path = err == nil, p.path
		return err
	})
	out.addNote(said)
	return out, err
}

// removeFile removes a file, or with recursive also a directory.
func (p fileRef) removeFile(ctx context.Context, recursive bool) error {
	if !recursive {
		info, err := p.Stat(ctx, p.path)
		if err != nil {
			return err
		}
		if info.Type == atoll.TypeDirectory {
			return refusalErrorf(atoll.ErrInvalid, "%s is a directory: set recursive to delete it with all in it", p.path)
		}
	}
	return p.Remove(ctx, p.path, recursive)
}
