package fakemodal

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"regexp"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxInline is the largest content of a message. Clients upload larger content as a blob.
const maxInline = 4 << 20

var sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)

// hasFile reports whether a client has uploaded content with this hash.
func (s *Server) hasFile(sha string) bool {
	if !sha256Form.MatchString(sha) {
		return false
	}
	_, err := os.Lstat(s.filePath("files", sha))
	return err == nil
}

// MountPutFile stores the content of a file, or reports whether it is already stored.
func (s *Server) MountPutFile(_ context.Context, req *pb.MountPutFileRequest) (*pb.MountPutFileResponse, error) {
	sha := req.GetSha256Hex()
	if !sha256Form.MatchString(sha) {
		return nil, status.Error(codes.InvalidArgument, "sha256_hex must be a SHA-256 in hexadecimal digits")
	}
	var content io.Reader
	switch {
	case req.HasDataBlobId():
		blob, err := s.blobs.openBlob(req.GetDataBlobId())
		if err != nil {
			return nil, err
		}
		defer blob.Close()
		content = blob
	case req.HasData() && len(req.GetData()) > maxInline:
		return nil, status.Errorf(codes.InvalidArgument, "data has %d bytes; upload more than %d bytes as a blob", len(req.GetData()), maxInline)
	case req.HasData():
		content = bytes.NewReader(req.GetData())
	default:
		return pb.MountPutFileResponse_builder{Exists: s.hasFile(sha)}.Build(), nil
	}
	if err := s.storeFile(sha, content); err != nil {
		return nil, err
	}
	return pb.MountPutFileResponse_builder{Exists: true}.Build(), nil
}

// storeFile writes content to a file named by its hash.
func (s *Server) storeFile(sha string, content io.Reader) error {
	f, err := os.CreateTemp(s.filePath("files"), "upload-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(f, hash), content); err != nil {
		return err
	}
	if hex.EncodeToString(hash.Sum(nil)) != sha {
		return status.Error(codes.InvalidArgument, "sha256_hex does not match the content")
	}
	return errors.Join(f.Close(), os.Rename(f.Name(), s.filePath("files", sha)))
}

// writeInRoot writes a file of a volume atomically. It does not follow links out of the volume.
func writeInRoot(root *os.Root, name string, mode os.FileMode, from io.Reader) (err error) {
	temp := path.Join(path.Dir(name), ".upload-"+rand.Text())
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, root.Remove(temp))
		}
	}()
	_, err = io.Copy(f, from)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err != nil {
		return err
	}
	return root.Rename(temp, name)
}
