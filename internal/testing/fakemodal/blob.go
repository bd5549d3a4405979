package fakemodal

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxBlob is the size limit of a blob, which clients upload in one part.
const maxBlob = 1 << 30

// A blobStore accepts uploads over HTTP, like an object store.
type blobStore struct {
	*webServer
	dir string

	mu        sync.Mutex
	announced map[string]*pb.BlobCreateRequest // uploads that may come, by id
	uploaded  map[string]bool
}

func newBlobStore(dir string) (*blobStore, error) {
	b := &blobStore{dir: dir, announced: map[string]*pb.BlobCreateRequest{}, uploaded: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /{id}", b.serveUpload)
	mux.HandleFunc("GET /{id}", b.serveDownload)
	var err error
	b.webServer, err = serveHTTP(mux)
	return b, err
}

func (b *blobStore) blobURL(id string) string  { return "http://" + b.address + "/" + id }
func (b *blobStore) blobPath(id string) string { return filepath.Join(b.dir, id) }

// serveUpload accepts one upload if it matches its announcement.
func (b *blobStore) serveUpload(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	b.mu.Lock()
	want := b.announced[id]
	b.mu.Unlock()
	if want == nil {
		http.Error(w, "AccessDenied", http.StatusForbidden)
		return
	}
	if got := r.Header.Get("Content-MD5"); got != "" && got != want.GetContentMd5() {
		http.Error(w, "InvalidDigest", http.StatusBadRequest)
		return
	}
	etag, err := b.writeBlob(id, want, r.Body)
	switch {
	case errors.Is(err, errBadDigest):
		http.Error(w, "BadDigest", http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.Header().Set("ETag", `"`+etag+`"`)
	}
}

var errBadDigest = errors.New("content does not match its announcement")

// writeBlob writes the body to a file, and checks its length and hashes.
func (b *blobStore) writeBlob(id string, want *pb.BlobCreateRequest, body io.Reader) (etag string, err error) {
	f, err := os.CreateTemp(b.dir, "upload-")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name()) // fails after the rename
	defer f.Close()
	md, sha := md5.New(), sha256.New()
	n, err := io.Copy(io.MultiWriter(f, md, sha), body)
	if err != nil {
		return "", err
	}
	encode := base64.StdEncoding.EncodeToString
	if n != want.GetContentLength() || encode(md.Sum(nil)) != want.GetContentMd5() || encode(sha.Sum(nil)) != want.GetContentSha256Base64() {
		return "", errBadDigest
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	if err := os.Rename(f.Name(), b.blobPath(id)); err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uploaded[id] = true
	return hex.EncodeToString(md.Sum(nil)), nil
}

// serveDownload sends a blob.
func (b *blobStore) serveDownload(w http.ResponseWriter, r *http.Request) {
	f, err := b.openBlob(r.PathValue("id"))
	if err != nil {
		http.Error(w, "NoSuchKey", http.StatusNotFound)
		return
	}
	defer f.Close()
	_, _ = io.Copy(w, f) // the client may have gone
}

// openBlob opens an uploaded blob.
func (b *blobStore) openBlob(id string) (*os.File, error) {
	b.mu.Lock()
	uploaded := b.uploaded[id]
	b.mu.Unlock()
	if !uploaded {
		return nil, status.Errorf(codes.NotFound, "Blob '%s' not found", id)
	}
	return os.Open(b.blobPath(id))
}

// BlobCreate announces an upload.
func (s *Server) BlobCreate(_ context.Context, req *pb.BlobCreateRequest) (*pb.BlobCreateResponse, error) {
	switch {
	case req.GetContentLength() < 0, req.GetContentLength() > maxBlob:
		return nil, status.Errorf(codes.InvalidArgument, "content_length %d: must be within 0..%d", req.GetContentLength(), maxBlob)
	case !isHash(req.GetContentMd5(), md5.Size), !isHash(req.GetContentSha256Base64(), sha256.Size):
		return nil, status.Error(codes.InvalidArgument, "content_md5 and content_sha256_base64 must be hashes in base64")
	}
	id := newID("bl-")
	s.blobs.mu.Lock()
	defer s.blobs.mu.Unlock()
	s.blobs.announced[id] = req
	url := s.blobs.blobURL(id)
	return pb.BlobCreateResponse_builder{BlobId: id, UploadUrl: &url}.Build(), nil
}

// isHash reports whether text is the base64 form of size bytes.
func isHash(text string, size int) bool {
	b, err := base64.StdEncoding.DecodeString(text)
	return err == nil && len(b) == size
}

// BlobGet returns the URL from which a client can download a blob.
func (s *Server) BlobGet(_ context.Context, req *pb.BlobGetRequest) (*pb.BlobGetResponse, error) {
	f, err := s.blobs.openBlob(req.GetBlobId())
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return pb.BlobGetResponse_builder{DownloadUrl: s.blobs.blobURL(req.GetBlobId())}.Build(), nil
}
