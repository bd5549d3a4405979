package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A PostgresServer is a server on a socket in its own directory.
type PostgresServer struct {
	dir, programs string
	credential    *syscall.Credential // nil for the user of this process; the server refuses root

	pid   int
	ended chan struct{}
}

// newPostgres creates and starts a server.
func newPostgres() (_ *PostgresServer, err error) {
	programs, err := postgresDir()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		return nil, err
	}
	s := &PostgresServer{dir: dir, programs: programs}
	defer func() {
		if err != nil {
			s.stopAndRemove()
		}
	}()
	if os.Geteuid() == 0 {
		if err := s.useOtherUser(); err != nil {
			return nil, err
		}
	}
	data := filepath.Join(dir, "data")
	init := s.serverCommand("initdb", "-D", data, "-U", "atoll", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions")
	if out, err := init.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	access := "local all locked scram-sha-256\nlocal all all trust\n"
	if err := os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(access), 0o600); err != nil {
		return nil, err
	}
	single := s.serverCommand("postgres", "--single", "-D", data, "postgres")
	single.Stdin, err = inputFile("CREATE DATABASE atoll;\nCREATE USER locked PASSWORD '" + LockedPassword + "';\nGRANT ALL ON DATABASE atoll TO locked;\n")
	if err != nil {
		return nil, err
	}
	if out, err := single.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("postgres --single: %w: %s", err, out)
	}
	return s, s.startServer()
}

// useOtherUser makes the server run as a user other than root.
func (s *PostgresServer) useOtherUser() error {
	name := "postgres"
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return err
	}
	s.credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(s.dir, uid, gid)
}

// inputFile returns a file with a text, for the stdin of a program.
func inputFile(text string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.WriteString(text) // fits into a pipe
	return r, errors.Join(err, w.Close())
}

func (s *PostgresServer) serverCommand(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.programs, name), args...)
	cmd.Dir = s.dir
	// The kernel ends the server when the test program ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential, Pdeathsig: syscall.SIGQUIT}
	return cmd
}

// startServer starts the server and waits until it answers.
func (s *PostgresServer) startServer() error {
	long := Scale(4 * time.Minute) // the server may have to recover from a kill
	var err error
	for deadline := time.Now().Add(long); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = s.tryStart(time.Until(deadline)); err == nil {
			return nil
		}
	}
	return err
}

func (s *PostgresServer) tryStart(within time.Duration) error {
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := s.serverCommand("postgres", "-D", filepath.Join(s.dir, "data"), "-k", s.dir, "-c", "listen_addresses=",
		"-c", "max_connections=300", "-c", "shared_buffers=16MB", "-c", "max_wal_size=128MB",
		"-c", "fsync=off", "-c", "full_page_writes=off", // for crashes of the system, unlike a kill of the server
		"-c", "dynamic_shared_memory_type=mmap") // in its directory: a killed server would leave files in /dev/shm
	cmd.Stdout, cmd.Stderr = log, log
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // Pdeathsig refers to this thread
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // a signal ends it
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		return err
	}
	s.pid, s.ended = cmd.Process.Pid, ended
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		said, err := os.ReadFile(log.Name())
		if err != nil || strings.Contains(string(said), "ready to accept connections") {
			return err
		}
		select {
		case <-ended:
			return fmt.Errorf("server ended: %s", said)
		case <-time.After(20 * time.Millisecond):
		}
	}
	s.signalServer(syscall.SIGQUIT)
	return fmt.Errorf("server does not answer")
}

// signalServer sends the server a signal and waits for its end. It does nothing if the server has
// ended, since another process may have its pid.
func (s *PostgresServer) signalServer(how syscall.Signal) {
	select {
	case <-s.ended:
		return
	default:
	}
	_ = syscall.Kill(s.pid, how) // fails if it ends now
	<-s.ended
}

// Kill kills the server and its children. The server cannot close connections or write data.
func (s *PostgresServer) Kill() {
	select {
	case <-s.ended:
		return
	default:
	}
	_ = syscall.Kill(s.pid, syscall.SIGSTOP) // so that it starts no more processes
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", s.pid))
	s.signalServer(syscall.SIGKILL)
	for _, child := range strings.Fields(string(children)) { // children would answer until they notice
		if pid, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// Start restarts a killed server.
func (s *PostgresServer) Start(t testing.TB) {
	t.Helper()
	if err := s.startServer(); err != nil {
		t.Fatalf("PostgreSQL: %v", err)
	}
}

func (s *PostgresServer) stopAndRemove() {
	if s.ended != nil {
		s.signalServer(syscall.SIGQUIT)
	}
	for end := time.Now().Add(Scale(10 * time.Second)); time.Now().Before(end); time.Sleep(50 * time.Millisecond) { // its children may still write
		if os.RemoveAll(s.dir) == nil {
			return
		}
	}
}
