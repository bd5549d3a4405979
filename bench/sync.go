//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The rows of sync.
const (
	viaSync   = "atoll sync"
	viaRclone = "rclone sync (32 transfers, checksums)"
	viaS5cmd  = "s5cmd sync"
)

// The sizes of the synced tree, in files and bytes.
const (
	smallFiles, smallSize = 2000, 4 << 10
	largeFiles, largeSize = 20, 5 << 20
	filesPerDir           = 50
)

// treeRoundWeight divides the number of rounds for steps that move the whole tree.
const treeRoundWeight = 5

// farLatency is the one-way latency of a distant server.
const farLatency = 10 * time.Millisecond

// measureSync compares "atoll sync" with rclone and s5cmd, with a server on this machine and with a
// distant one.
func (b *bench) measureSync(ctx context.Context) (err error) {
	dir, where := b.dir, "on disk"
	if made, ok := makeMemoryDir(); ok {
		dir, where = made, "in memory"
		defer func() { err = errors.Join(err, os.RemoveAll(made)) }()
	}
	s, err := b.startObjects(ctx, filepath.Join(dir, "objects"))
	var missing missingError
	if errors.As(err, &missing) {
		b.table.missing = append(b.table.missing, missing.Error())
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopServer()) }()
	peers, err := b.newSyncPeers(s, dir)
	if err != nil {
		return err
	}
	link, err := startSlowLink(s.address, farLatency)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, link.Close()) }()

	title := "Versions of a directory " + where + ", server "
	near := title + "near: "
	if err := b.measureSyncSteps(ctx, near, s.address, peers, syncGoals); err != nil {
		return err
	}
	far := fmt.Sprintf("%s%v away: ", title, 2*farLatency)
	if err := b.measureSyncSteps(ctx, far, link.Addr().String(), peers, syncGoalsFar); err != nil {
		return err
	}
	if err := b.countRequests(ctx, link, peers); err != nil {
		return err
	}
	return b.measureSyncMemory(ctx, s, dir)
}

// minMemory is the memory, in bytes, that must be free to hold the files.
const minMemory = 8 << 30

// makeMemoryDir makes a directory in memory, if there is room and the file system has the extended
// attributes that versitygw needs. There the comparison does not depend on how fast disks make files,
// which the other programs do most.
func makeMemoryDir() (dir string, ok bool) {
	const parent = "/dev/shm"
	var fs unix.Statfs_t
	_, free, err := readMemory()
	if err != nil || free < minMemory || unix.Statfs(parent, &fs) != nil || fs.Type != unix.TMPFS_MAGIC || int64(fs.Bavail)*fs.Bsize < minMemory {
		return "", false
	}
	if dir, err = os.MkdirTemp(parent, "bench"); err != nil {
		return "", false
	}
	if unix.Setxattr(dir, "user.atoll", []byte("x"), 0) != nil { // before Linux 6.6
		_ = os.Remove(dir)
		return "", false
	}
	return dir, true
}

// The goals of each step, in their order. Only those for the near server limit times.
var (
	syncGoals = [...][]goal{
		{{row: viaSync, than: viaRclone, most: 1}},
		{{row: viaSync, than: viaS5cmd, most: 1}, {row: viaSync, millis: 150}},
		{{row: viaSync, millis: 250}},
		{{row: viaSync, than: viaRclone, most: 1}},
	}
	syncGoalsFar = [...][]goal{
		{{row: viaSync, than: viaRclone, most: 1}},
		{{row: viaSync, than: viaS5cmd, most: 1}},
		nil,
		{{row: viaSync, than: viaRclone, most: 1}},
	}
)

// A syncPeer is one program with a copy of the tree.
type syncPeer struct {
	row        string
	s          *objectServer
	dir        string // private to the program
	tree       string
	bucket     string // the target of pushes
	push, pull func(ctx context.Context, p *syncPeer, endpoint, dir string) *exec.Cmd
	n          int // number of buckets and directories so far
}

// A syncStep is a measured operation. Before it, runStep flushes all data to disk.
type syncStep struct {
	title  string
	rounds int // for each program
	ready  func(p *syncPeer) error
	run    func(ctx context.Context, p *syncPeer, endpoint string) *exec.Cmd
	check  func(p *syncPeer) error
}

// listSyncSteps returns the steps in their order.
func listSyncSteps(rounds int) []syncStep {
	push := func(ctx context.Context, p *syncPeer, endpoint string) *exec.Cmd {
		return p.push(ctx, p, endpoint, p.tree)
	}
	nothing := func(*syncPeer) error { return nil }
	return []syncStep{
		{"first push", max(rounds/treeRoundWeight, 1), (*syncPeer).useNewBucket, push, nothing},
		{"push, nothing changed", rounds, nothing, push, nothing},
		{fmt.Sprintf("push, one of %d files changed", smallFiles+largeFiles), rounds, (*syncPeer).changeFile, push, nothing},
		{"first pull", max(rounds/treeRoundWeight, 1), (*syncPeer).makePullDir, func(ctx context.Context, p *syncPeer, endpoint string) *exec.Cmd {
			return p.pull(ctx, p, endpoint, p.pullDir())
		}, (*syncPeer).checkPulled},
	}
}

// measureSyncSteps measures all steps, and frees disk space after each.
func (b *bench) measureSyncSteps(ctx context.Context, title, endpoint string, peers []*syncPeer, goals [4][]goal) error {
	for i, step := range listSyncSteps(b.rounds) {
		var methods []method
		for _, p := range peers {
			methods = append(methods, method{p.row, func(ctx context.Context) (time.Duration, error) { return step.runStep(ctx, p, endpoint) }})
		}
		if err := b.compareRounds(ctx, step.rounds, title+step.title, goals[i], methods); err != nil {
			return err
		}
		for _, p := range peers {
			if err := p.truncateOld(); err != nil {
				return err
			}
		}
	}
	return nil
}

// runStep prepares, runs and checks the step for one program. It returns how long the program took.
func (step *syncStep) runStep(ctx context.Context, p *syncPeer, endpoint string) (time.Duration, error) {
	if err := step.ready(p); err != nil {
		return 0, err
	}
	if err := flushDisk(p.dir); err != nil {
		return 0, err
	}
	took, err := untilEnd(step.run(ctx, p, "http://"+endpoint))
	if err != nil {
		return 0, err
	}
	return took, step.check(p)
}

// flushDisk writes all cached data of a directory's file system to its disk.
func flushDisk(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// countRequests counts the requests of each program in each step, without timing them.
func (b *bench) countRequests(ctx context.Context, link *slowLink, peers []*syncPeer) error {
	link.counts.Store(true)
	defer link.counts.Store(false)
	for _, step := range listSyncSteps(1) {
		for _, p := range peers {
			before := link.requests.Load()
			if _, err := step.runStep(ctx, p, link.Addr().String()); err != nil {
				return err
			}
			b.table.addFact(fact{title: requestsTitle, name: step.title + ": " + p.row, value: strconv.FormatInt(link.requests.Load()-before, 10)})
		}
	}
	for _, p := range peers {
		if err := p.truncateOld(); err != nil {
			return err
		}
	}
	return nil
}

// newSyncPeers makes the trees below base, and defines the commands of each program.
func (b *bench) newSyncPeers(s *objectServer, base string) ([]*syncPeer, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	programs := filepath.Join(cache, "atoll-test", "peers")
	command := func(ctx context.Context, name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(programs, name), args...)
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "TMPDIR=" + base}, objectsEnv...)
		return cmd
	}
	ours := func(verb string) func(context.Context, *syncPeer, string, string) *exec.Cmd {
		return func(ctx context.Context, p *syncPeer, endpoint, dir string) *exec.Cmd {
			cmd := b.atollCommand(ctx, filepath.Join(p.dir, "state"), "sync", verb, dir, "s3://"+p.bucket)
			cmd.Env = append(append(cmd.Env, "ATOLL_SYNC_PATH_STYLE=true", "ATOLL_SYNC_ENDPOINT="+endpoint, "TMPDIR="+base), objectsEnv...)
			return cmd
		}
	}
	rclone := func(ctx context.Context, endpoint, from, to string) *exec.Cmd {
		cmd := command(ctx, "rclone", "sync", "--transfers=32", "--checkers=32", "--fast-list", "--checksum", from, to)
		cmd.Env = append(cmd.Env, "RCLONE_CONFIG="+os.DevNull, "RCLONE_S3_PROVIDER=Other", "RCLONE_S3_ENV_AUTH=true",
			"RCLONE_S3_NO_CHECK_BUCKET=true", "RCLONE_S3_ENDPOINT="+endpoint)
		return cmd
	}
	peers := []*syncPeer{
		{row: viaSync, push: ours("push"), pull: ours("pull")},
		{
			row: viaRclone,
			push: func(ctx context.Context, p *syncPeer, endpoint, dir string) *exec.Cmd {
				return rclone(ctx, endpoint, dir, ":s3:"+p.bucket)
			},
			pull: func(ctx context.Context, p *syncPeer, endpoint, dir string) *exec.Cmd {
				return rclone(ctx, endpoint, ":s3:"+p.bucket, dir)
			},
		},
		{
			row: viaS5cmd,
			push: func(ctx context.Context, p *syncPeer, endpoint, dir string) *exec.Cmd {
				return command(ctx, "s5cmd", "--endpoint-url", endpoint, "sync", "--delete", dir+"/", "s3://"+p.bucket+"/")
			},
			pull: func(ctx context.Context, p *syncPeer, endpoint, dir string) *exec.Cmd {
				return command(ctx, "s5cmd", "--endpoint-url", endpoint, "sync", "s3://"+p.bucket+"/*", dir+"/")
			},
		},
	}
	for i, p := range peers {
		p.s, p.dir = s, filepath.Join(base, "peers", strconv.Itoa(i))
		p.tree = filepath.Join(p.dir, "tree")
		if err := makeTree(p.tree); err != nil {
			return nil, err
		}
	}
	return peers, nil
}

// makeTree makes the files of a tree. Their content is different from file to file, and the same at
// each call.
func makeTree(dir string) error {
	random := rand.NewChaCha8([32]byte{})
	for i := range smallFiles + largeFiles {
		size := smallSize
		if i >= smallFiles {
			size = largeSize
		}
		b := make([]byte, size)
		_, _ = random.Read(b) // never fails
		name := filepath.Join(dir, treeFileName(i))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// treeFileName returns the name of the i-th file.
func treeFileName(i int) string { return fmt.Sprintf("dir-%d/file-%d", i/filesPerDir, i) }

// useNewBucket makes an empty bucket for pushes, and deletes the program's record of earlier pushes.
func (p *syncPeer) useNewBucket() error {
	p.n++
	p.bucket = p.bucketName(p.n)
	if err := os.Remove(filepath.Join(p.tree, stateName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Mkdir(filepath.Join(p.s.data, p.bucket), 0o755) // a bucket of this server is a directory
}

// bucketName returns the name of the program's n-th bucket.
func (p *syncPeer) bucketName(n int) string {
	return fmt.Sprintf("bucket-%s-%d", filepath.Base(p.dir), n)
}

// changeFile overwrites one small file.
func (p *syncPeer) changeFile() error {
	p.n++
	b := bytes.Repeat(fmt.Appendf(nil, "%15d\n", p.n), smallSize/16)
	return os.WriteFile(filepath.Join(p.tree, treeFileName(p.n%smallFiles)), b, 0o644)
}

// pullDir returns the directory for pulls.
func (p *syncPeer) pullDir() string { return p.pullDirName(p.n) }

// pullDirName returns the path of the program's n-th directory for pulls.
func (p *syncPeer) pullDirName(n int) string {
	return filepath.Join(p.dir, fmt.Sprintf("pulled-%d", n))
}

// makePullDir makes a new directory for pulls.
func (p *syncPeer) makePullDir() error {
	p.n++
	return os.Mkdir(p.pullDir(), 0o755)
}

// checkPulled checks that the pulled tree equals the pushed one.
func (p *syncPeer) checkPulled() error {
	want, err := sumTree(p.tree)
	if err != nil {
		return err
	}
	got, err := sumTree(p.pullDir())
	if err == nil && got != want {
		err = fmt.Errorf("%s: the pulled tree differs from the pushed one", p.row)
	}
	return err
}

// truncateOld empties the large files of old buckets and pulled trees. It does not remove them, because
// file systems make files slowly after many removals.
func (p *syncPeer) truncateOld() error {
	for n := range p.n + 1 {
		bucket := p.bucketName(n)
		if bucket == p.bucket {
			continue
		}
		for _, dir := range []string{filepath.Join(p.s.data, bucket), p.pullDirName(n)} {
			if err := emptyLarge(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// emptyLarge empties the large files of a tree, if it exists.
func emptyLarge(dir string) error {
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil || info.Size() < largeSize {
			return err
		}
		return os.Truncate(path, 0)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// stateName is the file that only atoll sync adds to a tree.
const stateName = ".sandbox-state"

// sumTree returns a checksum of all names and contents of a tree.
func sumTree(dir string) (sum [32]byte, err error) {
	all := sha256.New()
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == stateName {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		fmt.Fprintf(all, "%q %x\n", name, sha256.Sum256(b))
		return err
	})
	copy(sum[:], all.Sum(nil))
	return sum, err
}
