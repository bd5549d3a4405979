package main

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A session is a file with the history of a conversation.
type session struct {
	id       string
	resumed  bool // continues an earlier session
	prompts  int  // number in the file
	messages int
	file     *os.File
}

// openSession creates a session. If resume is true, it opens the newest one of the working directory.
func openSession(resume bool) (*session, error) {
	dir, err := sessionsDir()
	if err != nil {
		return nil, err
	}
	s := &session{}
	if resume {
		if s.id, err = newestSession(dir); err != nil {
			return nil, err
		}
		if s.id == "" && os.Getenv("TESTAGENT_CONTINUE") != "new" {
			return nil, cliError("No conversation found to continue")
		}
	}
	if s.id != "" {
		s.resumed = true
		if err := s.countPrompts(filepath.Join(dir, s.id+".jsonl")); err != nil {
			return nil, err
		}
	} else {
		s.id = newID()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s.file, err = os.OpenFile(filepath.Join(dir, s.id+".jsonl"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	return s, err
}

// sessionsDir returns the directory with the sessions of the working directory.
func sessionsDir() (string, error) {
	config := os.Getenv("CLAUDE_CONFIG_DIR")
	if config == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		config = filepath.Join(home, ".claude")
	}
	cwd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, cwd)
	return filepath.Join(config, "projects", name), nil
}

// newestSession returns the id of the most recently written session, or "".
func newestSession(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var id string
	var last time.Time
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".jsonl")
		if !ok {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return "", err
		}
		if id == "" || info.ModTime().After(last) {
			id, last = name, info.ModTime()
		}
	}
	return id, nil
}

// countPrompts counts the prompts and messages in the file.
func (s *session) countPrompts(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var line struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		switch line.Type {
		case "user":
			s.prompts++
		case "assistant":
			s.messages++
		}
	}
	return lines.Err()
}

func (s *session) writeLine(line object) error {
	line["sessionId"] = s.id
	data, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = s.file.Write(append(data, '\n'))
	return err
}

func (s *session) closeFile() error { return s.file.Close() }

// newID returns a random UUID.
func newID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
