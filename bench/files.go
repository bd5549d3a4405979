//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// fileSize is the size of the copied file, in bytes.
const fileSize = 64 << 20

const (
	plainCopy = "plain copy"
	apiWrite  = "into the sandbox, through the API"
	apiRead   = "out of the sandbox, through the API"
)

// measureFiles compares copies of a file into and out of a sandbox with a copy on the same disk.
func (b *bench) measureFiles(ctx context.Context) (err error) {
	s, err := startServer(ctx, b, "files")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopServer()) }()
	sb, err := s.Create(ctx, &atoll.Spec{Image: "dir:" + b.root})
	if err != nil {
		return err
	}
	source, target := filepath.Join(b.dir, "source"), filepath.Join(b.dir, "target")
	if err := os.WriteFile(source, make([]byte, fileSize), 0o600); err != nil {
		return err
	}
	if err := sendFile(ctx, sb, source, "file"); err != nil {
		return err
	}
	return b.compareMethods(ctx, "a file of 64 MiB", []goal{
		{row: apiWrite, than: plainCopy, most: 2}, {row: apiRead, than: plainCopy, most: 2},
	}, []method{
		{plainCopy, timeCall(func(context.Context) error {
			return errors.Join(copyFile(source, target, 0o600), os.Remove(target))
		})},
		{apiWrite, timeCall(func(ctx context.Context) error {
			return errors.Join(sendFile(ctx, sb, source, "sent"), atoll.Files(sb).Remove(ctx, "sent", false))
		})},
		{apiRead, timeCall(func(ctx context.Context) error {
			return errors.Join(fetchFile(ctx, sb, "file", target), os.Remove(target))
		})},
	})
}

// sendFile copies a file of this machine into the sandbox.
func sendFile(ctx context.Context, sb atoll.Sandbox, source, name string) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = atoll.Files(sb).Write(ctx, name, f, atoll.WriteOptions{})
	return err
}

// fetchFile copies a file of fileSize bytes out of the sandbox.
func fetchFile(ctx context.Context, sb atoll.Sandbox, name, target string) error {
	r, _, err := atoll.Files(sb).Read(ctx, name, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := os.Create(target)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, r)
	if err == nil && n != fileSize {
		err = io.ErrUnexpectedEOF
	}
	return errors.Join(err, f.Close())
}

// timeCall returns a function that calls f and returns how long that took.
func timeCall(f func(context.Context) error) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		err := f(ctx)
		return time.Since(start), err
	}
}
