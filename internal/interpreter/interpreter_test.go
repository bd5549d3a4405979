package interpreter

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func readIn(files fstest.MapFS) func(string, int) ([]byte, error) {
	return func(path string, limit int) ([]byte, error) {
		data, err := fs.ReadFile(files, strings.TrimPrefix(path, "/"))
		return data[:min(len(data), limit)], err
	}
}

func TestScripts(t *testing.T) {
	for first, want := range map[string]string{
		"#!/usr/bin/nosuch\n":          `"/s": its interpreter "/usr/bin/nosuch" does not exist`,
		"#! \t/usr/bin/nosuch -x y\nz": `"/s": its interpreter "/usr/bin/nosuch" does not exist`,
		"#!/bin/sh\r\necho x\r\n":      `"/s": its interpreter "/bin/sh\r" does not exist: the file has the line ends of Windows`,
		"#!/bin/sh\n":                  "",
		"#!/bin/script\n":              `"/s": its interpreter "/nope" does not exist`,
		"#!/bin/loop\n":                "",
		"#!/usr/bin/nosuch":            `"/s": its interpreter "/usr/bin/nosuch" does not exist`,
		"#!":                           "",
		"":                             "",
		"echo x":                       "",
		"\x7fELF":                      "",
		"\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 57): "",
		"\x7fELF\x01\x01\x01" + strings.Repeat("\xff", 90): "",
	} {
		files := fstest.MapFS{
			"s": {Data: []byte(first)}, "bin/sh": {Data: []byte("\x7fELF")}, "bin/script": {Data: []byte("#!/nope\n")}, "bin/loop": {Data: []byte("#!/bin/loop\n")},
		}
		got := ""
		if err := Check("/s", readIn(files)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", first, got, want)
		}
	}
	if err := Check("/missing", readIn(nil)); err != nil {
		t.Errorf("a program that does not exist: %v", err)
	}
}

// The loader of a dynamically linked program of this machine is found.
func TestLoader(t *testing.T) {
	for _, program := range []string{"/bin/sh", "/usr/bin/env"} {
		path, err := filepath.EvalSymlinks(program)
		if err != nil {
			t.Skipf("no dynamically linked program: %v", err)
		}
		readHead := func(path string, limit int) ([]byte, error) {
			f, err := os.Open(path)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			return io.ReadAll(io.LimitReader(f, int64(limit)))
		}
		head, err := readHead(path, headSize)
		if err != nil {
			t.Fatal(err)
		}
		loader := interpreterOf(head)
		if loader == "" {
			t.Skipf("%s is linked statically", program)
		}
		if _, err := os.Stat(loader); err != nil {
			t.Errorf("%s: the loader %q: %v", program, loader, err)
		}
		if err := Check(path, readHead); err != nil {
			t.Errorf("with its loader: %v", err)
		}
		err = Check("/program", readIn(fstest.MapFS{"program": {Data: head}}))
		if err == nil || !strings.Contains(err.Error(), loader) {
			t.Errorf("%s without its loader %s: %v", program, loader, err)
		}
	}
}
