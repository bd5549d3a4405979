//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// The keys of the object storage, and the environment variables for its clients.
const accessKey, secretKey = "benchkey", "benchsecret"

var objectsEnv = []string{"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + secretKey, "AWS_REGION=us-east-1", "AWS_EC2_METADATA_DISABLED=true"}

// An objectServer is an S3 server that stores objects in a directory. It keeps connections open, as
// services do.
type objectServer struct {
	address string
	data    string // each directory in it is a bucket
	cmd     *exec.Cmd
}

// startObjects starts a server with the objects in the directory data.
func (b *bench) startObjects(ctx context.Context, data string) (_ *objectServer, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(cache, "atoll-test", "s3", "versitygw")
	for _, program := range []string{path, filepath.Join(cache, "atoll-test", "peers", "rclone"), filepath.Join(cache, "atoll-test", "peers", "s5cmd")} {
		if _, err := os.Stat(program); err != nil {
			return nil, missingError(fmt.Sprintf("sync: no %s: ./scripts/s3 and ./scripts/peers build it", filepath.Base(program)))
		}
	}
	s := &objectServer{data: data}
	if err := os.MkdirAll(s.data, 0o700); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.address = l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	s.cmd = exec.CommandContext(context.WithoutCancel(ctx), path, "--port", s.address, "--quiet", "--keep-alive", "posix", s.data)
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "ROOT_ACCESS_KEY=" + accessKey, "ROOT_SECRET_KEY=" + secretKey}
	s.cmd.Stderr = &atoll.Tail{Limit: 4 << 10}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C must reach only bench, which then stops the server
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	err = waitUntil(ctx, func() error {
		r, err := http.Get("http://" + s.address)
		if err == nil {
			err = r.Body.Close()
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.stopServer())
	}
	return s, nil
}

// stopServer kills the server. It returns an error if the server has ended before.
func (s *objectServer) stopServer() error {
	err := s.cmd.Process.Kill()
	_ = s.cmd.Wait() // with an error about the signal
	if errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("versitygw has ended: %s", s.cmd.Stderr.(*atoll.Tail).Bytes())
	}
	return err
}
