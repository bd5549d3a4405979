package trust

import (
	"bytes"
	"encoding/pem"
	"slices"
)

// The lines around our certificate in a bundle. Programs ignore text outside of PEM blocks.
const (
	beginLine = "# The certificate of Atoll's gateway"
	endLine   = "# End of the certificate of Atoll's gateway"
)

const (
	certificateType = "CERTIFICATE"
	beginPrefix     = "-----BEGIN "
	endPrefix       = "-----END "
)

// addCertificate returns a bundle with the certificate, and without those of earlier calls: certificates between our lines, and old.
// It returns data if nothing has to change.
func addCertificate(data, der, certPEM []byte, old [][]byte) []byte {
	var kept []byte
	found := false
	for _, p := range splitBundle(data) {
		ours := p.der != nil && bytes.Equal(p.der, der)
		isOld := slices.ContainsFunc(old, func(other []byte) bool { return bytes.Equal(p.der, other) })
		if p.marked && !ours || isOld {
			continue
		}
		found = found || ours
		kept = append(kept, p.text...)
	}
	if found {
		return kept
	}
	if len(kept) > 0 && !bytes.HasSuffix(kept, []byte("\n")) {
		kept = append(kept, '\n')
	}
	return slices.Concat(kept, []byte(beginLine+"\n"), certPEM, []byte(endLine+"\n"))
}

// A part is a PEM block of a bundle, with our lines around it, or text between blocks.
type part struct {
	text   []byte
	der    []byte // nil if it is not a whole certificate
	marked bool   // our first line is before it
}

// A splitter cuts a bundle into parts, line by line.
type splitter struct {
	parts  []part
	data   []byte
	start  int  // of the current part
	marked bool // the current part begins with our first line
	opened bool // it has the first line of a block
	closed bool // it has the last line of the block
}

// splitBundle returns the parts of a bundle. Together they have all of its bytes. A block may be cut off, and our last line may be missing.
func splitBundle(data []byte) []part {
	s := &splitter{data: data}
	pos := 0
	for line := range bytes.Lines(data) {
		next := pos + len(line)
		s.addLine(string(bytes.TrimRight(line, "\r\n")), pos, next)
		pos = next
	}
	s.cutPart(pos)
	return s.parts
}

// addLine adds a line, which begins at pos and ends before next, to the current part or to a new one.
func (s *splitter) addLine(line string, pos, next int) {
	isBegin := len(line) > len(beginPrefix) && line[:len(beginPrefix)] == beginPrefix
	isEnd := len(line) > len(endPrefix) && line[:len(endPrefix)] == endPrefix
	switch {
	case s.marked && line == endLine:
		s.cutPart(next)
		return
	case line == beginLine:
		s.cutPart(pos)
		s.marked = true
	case isBegin:
		if s.opened || !s.marked {
			s.cutPart(pos)
		}
		s.opened = true
	case s.closed: // our last line is missing
		s.cutPart(pos)
	case isEnd && s.opened && s.marked:
		s.closed = true
	case isEnd && s.opened:
		s.cutPart(next)
	case s.marked && !s.opened: // our block is missing
		s.marked = false
	}
}

// cutPart ends the current part before pos.
func (s *splitter) cutPart(pos int) {
	if pos > s.start {
		p := part{text: s.data[s.start:pos], marked: s.marked}
		if block, _ := pem.Decode(p.text); s.opened && block != nil && block.Type == certificateType {
			p.der = block.Bytes
		}
		s.parts = append(s.parts, p)
	}
	s.start, s.marked, s.opened, s.closed = pos, false, false, false
}
