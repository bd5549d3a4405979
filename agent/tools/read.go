package tools

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"image"
	_ "image/gif"  // for image.DecodeConfig
	_ "image/jpeg" // for image.DecodeConfig
	_ "image/png"  // for image.DecodeConfig
	"io"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
)

type readFileInput struct {
	Path     string `json:"path" jsonschema:"relative to the work directory, or absolute"`
	Line     int    `json:"line,omitempty" jsonschema:"the first line to return; the answer then has line numbers"`
	Lines    int    `json:"lines,omitempty" jsonschema:"the most lines to return"`
	Encoding string `json:"encoding,omitempty" jsonschema:"text or base64; other data than UTF-8 is always base64"`
	Offset   int64  `json:"offset,omitempty" jsonschema:"the first byte to return, instead of line"`
	MaxBytes int    `json:"max_bytes,omitempty" jsonschema:"the most bytes to return"`
}

type readFileOutput struct {
	Path      string `json:"path"`
	Content   string `json:"content"`
	Encoding  string `json:"encoding" jsonschema:"text, base64, or none if the content is left out"`
	MIMEType  string `json:"mime_type,omitempty" jsonschema:"of an image or a PDF that is returned besides"`
	SizeBytes int64  `json:"size_bytes" jsonschema:"of the whole file"`
	Line      int    `json:"line,omitempty" jsonschema:"the number of the first returned line"`
	NextLine  int    `json:"next_line,omitempty" jsonschema:"the line after the last returned one"`
	Truncated bool   `json:"truncated,omitempty" jsonschema:"more follows at next_offset or next_line"`
	Next      int64  `json:"next_offset,omitempty"`
	note

	media *Media
}

// encodingNone is the encoding of an answer whose content is left out.
const encodingNone = "none"

func readFile(ctx context.Context, c *call, in readFileInput) (out readFileOutput, err error) {
	if err := checkEncoding(in.Encoding); err != nil {
		return out, err
	}
	byLine := in.Line != 0 || in.Lines != 0
	switch {
	case in.Offset < 0 || in.MaxBytes < 0 || in.Line < 0 || in.Lines < 0:
		return out, refusalErrorf(atoll.ErrInvalid, "line, lines, offset and max_bytes must not be negative")
	case byLine && (in.Offset > 0 || in.Encoding == encodingBase64):
		return out, refusalErrorf(atoll.ErrInvalid, "line and lines cannot be combined with offset or base64: use one of them")
	}
	most, err := c.k.outputLimit(in.MaxBytes)
	if err != nil {
		return out, err
	}
	c.reads = true
	said, err := c.withFile(ctx, in.Path, func(_ *sandboxState, p fileRef) error {
		out = readFileOutput{Path: p.path}
		if byLine {
			return out.readLines(ctx, p, max(in.Line, 1), in.Lines, most)
		}
		data, info, err := p.readRange(ctx, in.Offset, int64(most))
		if err != nil {
			return err
		}
		out.SizeBytes = info.Size
		if len(data) > 0 { // the file may have grown meanwhile
			out.SizeBytes = max(info.Size, in.Offset+int64(len(data)))
		}
		if c.media && in.Offset == 0 && in.Encoding == "" {
			if done, err := out.setMedia(ctx, p, data); done || err != nil {
				return err
			}
		}
		out.setContent(data, in, most)
		return nil
	})
	out.addNote(said)
	return out, err
}

// setContent sets the content to the beginning of data that fits, and what follows it.
func (o *readFileOutput) setContent(data []byte, in readFileInput, most int) {
	chars := data
	if size := (jobs.Text{Data: data}).Size(); size > most || in.Offset+int64(len(data)) < o.SizeBytes {
		chars = data[:jobs.FitStart(data, most)] // the next call returns the rest of a character
	}
	if in.Encoding != encodingBase64 && utf8.Valid(chars) && (len(chars) > 0 || len(data) == 0) {
		data, o.Content, o.Encoding = chars, string(chars), encodingText
	} else {
		if in.MaxBytes == 0 {
			data = data[:min(len(data), max(1, base64.StdEncoding.DecodedLen(most)))]
		}
		o.Content, o.Encoding = base64.StdEncoding.EncodeToString(data), encodingBase64
	}
	if next := in.Offset + int64(len(data)); next < o.SizeBytes {
		o.Truncated, o.Next = true, next
		o.appendNote("%d more bytes follow: offset %d reads on.", o.SizeBytes-next, next)
	}
}

// imageTypes are the types of images that models look at.
var imageTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

// Bounds of images and PDFs, as model services have them.
const (
	maxImage     = 3_500_000 // bytes
	maxImageSide = 8000      // pixels
)

// setPDF sets a PDF, with advice for models that do not see it.
func (o *readFileOutput) setPDF(ctx context.Context, p fileRef) error {
	o.Encoding = encodingNone
	if o.SizeBytes > maxImage {
		o.appendNote("This is a PDF of %d bytes, more than the %d that can be returned: extract its text with sandbox_exec, for example by pdftotext.", o.SizeBytes, maxImage)
		return nil
	}
	data, _, err := p.readRange(ctx, 0, maxImage+1)
	if err != nil || len(data) > maxImage {
		return err
	}
	o.appendNote("This is a PDF of %d bytes. If you do not see it, extract its text with sandbox_exec, for example by pdftotext.", len(data))
	o.MIMEType, o.media = TypePDF, &Media{Type: TypePDF, Path: p.path, Data: data}
	return nil
}

// setMedia sets an image or a PDF, if a file that begins with data is one. It reports whether it is.
func (o *readFileOutput) setMedia(ctx context.Context, p fileRef, data []byte) (done bool, err error) {
	kind := http.DetectContentType(data)
	if kind == TypePDF {
		return true, o.setPDF(ctx, p)
	}
	if !slices.Contains(imageTypes, kind) {
		return false, nil
	}
	o.Encoding = encodingNone
	if o.SizeBytes > maxImage {
		o.appendNote("This is an image, %s, of %d bytes, more than the %d that can be returned: make it smaller with a program.", kind, o.SizeBytes, maxImage)
		return true, nil
	}
	data, _, err = p.readRange(ctx, 0, maxImage+1)
	if err != nil || len(data) > maxImage {
		return err == nil, err
	}
	if kind == "image/webp" { // which the standard library does not read
		o.appendNote("This is an image, %s, of %d bytes.", kind, len(data))
	} else {
		config, _, err := image.DecodeConfig(bytes.NewReader(data))
		if err != nil {
			o.appendNote("This is a broken image, %s, of %d bytes: %v.", kind, len(data), err)
			return true, nil // a model service may refuse the whole conversation
		}
		o.appendNote("This is an image, %s, of %d x %d pixels and %d bytes.", kind, config.Width, config.Height, len(data))
		if max(config.Width, config.Height) > maxImageSide {
			o.appendNote("It has more than %d pixels on a side, and cannot be returned: make it smaller with a program.", maxImageSide)
			return true, nil
		}
	}
	o.MIMEType, o.media = kind, &Media{Type: kind, Path: p.path, Data: data}
	return true, nil
}

// readLines sets the content to up to count lines from a first one on, 0 for any number, within most bytes
// of JSON.
func (o *readFileOutput) readLines(ctx context.Context, p fileRef, first, count, most int) error {
	ctx, cancel := context.WithCancel(ctx) // don't wait for the rest
	defer cancel()
	r, info, err := p.Read(ctx, p.path, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	o.SizeBytes, o.Encoding, o.Line = info.Size, encodingText, first
	lines := bufio.NewReaderSize(r, 64<<10)
	var content []byte
	room, n := most, 1
	for ; ; n++ {
		line, cut, err := nextLine(lines, most)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(line) == 0 && err != nil { // the end
			break
		}
		if n < first {
			continue
		}
		size := jobs.Text{Data: line}.Size()
		if count > 0 && n == first+count || size > room && n > first {
			o.Truncated, o.NextLine = true, n
			break
		}
		if cut = cut || size > room; cut {
			line = append(line[:jobs.FitStart(line, room)], '\n')
			o.appendNote("Line %d is longer than an answer, and cut: read it by offset.", n)
		}
		room -= size
		content = append(content, line...)
	}
	if bytes.ContainsRune(content, 0) {
		return refusalErrorf(atoll.ErrInvalid, "%s is not text: read it by offset, with encoding base64", p.path)
	}
	o.Content = strings.ToValidUTF8(string(content), "\ufffd")
	switch {
	case o.Truncated:
		o.appendNote("More lines follow: line %d reads on.", o.NextLine)
	case n <= first: // n-1 is the number of lines
		o.appendNote("The file has %d lines.", n-1)
	}
	return nil
}

// nextLine reads a line with its line end. Of a longer one than most bytes it returns the beginning, and cut.
func nextLine(r *bufio.Reader, most int) (line []byte, cut bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if room := most - len(line); len(part) > room {
			part, cut = part[:max(room, 0)], true
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, cut, err
		}
	}
}

// numberLines puts numbers before the lines of text.
func numberLines(text string, first int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		fmt.Fprintf(&b, "%6d\t%s", first, line)
		first++
	}
	return b.String()
}

// ReadFile reads a whole file of the caller's sandbox, with the checks of
// sandbox_fs_read. Kinds: those of the tool, and ErrInvalid if the file has more than
// most bytes.
func (k *Kit) ReadFile(ctx context.Context, caller Caller, name string, most int64) (data []byte, err error) {
	c := &call{k: k, caller: caller}
	_, err = c.withFile(ctx, name, func(_ *sandboxState, p fileRef) error {
		var info atoll.FileInfo
		data, info, err = p.readRange(ctx, 0, most+1)
		if err == nil && int64(len(data)) > most {
			err = refusalErrorf(atoll.ErrInvalid, "%s has %d bytes, more than the %d of one read: read parts of it with sandbox_fs_read", p.path, max(info.Size, most+1), most)
		}
		return err
	})
	if err != nil {
		return nil, shortenError(explainError("read", err))
	}
	return data, nil
}

// readRange reads up to most bytes of a file.
func (p fileRef) readRange(ctx context.Context, offset, most int64) ([]byte, atoll.FileInfo, error) {
	ctx, cancel := context.WithCancel(ctx) // don't wait for the rest
	defer cancel()
	r, info, err := p.Read(ctx, p.path, offset)
	if err != nil {
		return nil, info, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, most))
	return data, info, err
}
