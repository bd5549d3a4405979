package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"mime"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/tools"
)

// fileTemplate is the template of URIs of files; the path is absolute.
const (
	fileScheme   = "sandbox"
	fileTemplate = fileScheme + ":///{+path}"
)

func fileURI(abs string) string { return (&url.URL{Scheme: fileScheme, Path: abs}).String() }

// hasResources reports whether the kit has a lasting sandbox with readable files.
func (s *Server) hasResources() bool { return s.kit.Offers(toolRead) && s.kit.Offers(toolList) }

func (s *Server) resourceCapabilities() *sdk.ResourceCapabilities {
	if !s.hasResources() {
		return nil
	}
	return &sdk.ResourceCapabilities{}
}

// addResources offers the files of the session's open sandbox.
func (s *Server) addResources() {
	s.mcp.AddResourceTemplate(&sdk.ResourceTemplate{
		Name: "file", Title: "A file of the sandbox", URITemplate: fileTemplate,
		Description: "A file of the sandbox that is open, by its absolute path, as in sandbox:///work/report.md.",
	}, s.readFile)
	s.mcp.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			result, err := next(ctx, method, req)
			if list, ok := result.(*sdk.ListResourcesResult); ok && err == nil {
				client, _ := req.GetSession().(*sdk.ServerSession)
				var files []*sdk.Resource
				files, err = s.listFiles(ctx, client, req.GetExtra())
				list.Resources = append(list.Resources, files...)
			}
			if err != nil {
				return nil, err
			}
			return result, nil
		}
	})
}

// listFiles lists the files in the work directory, none if no sandbox runs.
func (s *Server) listFiles(ctx context.Context, client *sdk.ServerSession, extra *sdk.RequestExtra) ([]*sdk.Resource, error) {
	var all []*sdk.Resource
	ctx, caller, done, err := s.beginCall(ctx, client, extra)
	if err != nil {
		return nil, err
	}
	defer done()
	if ok, err := s.kit.Running(ctx, caller); err != nil || !ok {
		return all, err
	}
	var listed struct {
		Path    string
		Entries []struct {
			Name, Type string
			Size       int64 `json:"size_bytes"`
		}
	}
	if err := s.callOwn(ctx, caller, toolList, map[string]int{"max_output": tools.DefaultMaxOutput}, &listed); err != nil {
		return nil, err
	}
	for _, e := range listed.Entries {
		if e.Type != string(atoll.TypeFile) || strings.ContainsRune(e.Name, utf8.RuneError) {
			continue // JSON cannot represent the name
		}
		all = append(all, &sdk.Resource{URI: fileURI(path.Join(listed.Path, e.Name)), Name: e.Name, Size: e.Size, MIMEType: mime.TypeByExtension(path.Ext(e.Name))})
	}
	return all, nil
}

// callOwn calls a tool for this server itself.
func (s *Server) callOwn(ctx context.Context, caller tools.Caller, name string, in, out any) error {
	input, err := json.Marshal(in)
	if err != nil {
		return err
	}
	data, err := s.kit.Call(ctx, caller, name, input, nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, out)
}

// readFile reads a whole file that is not too large.
func (s *Server) readFile(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	ctx, caller, done, err := s.beginCall(ctx, req.Session, req.Extra)
	if err != nil {
		return nil, err
	}
	defer done()
	u, err := url.Parse(req.Params.URI)
	if err != nil || u.Host != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, invalidParamsf("%q: write it like sandbox:///work/report.md", req.Params.URI)
	}
	if ok, err := s.kit.Running(ctx, caller); err != nil {
		return nil, err
	} else if !ok {
		return nil, sdk.ResourceNotFoundError(req.Params.URI)
	}
	data, err := s.kit.ReadFile(ctx, caller, u.Path, min(maxResource, s.kit.Limits().MaxFileSize))
	switch kind := atoll.KindOf(err); {
	case kind == atoll.ErrNotExist:
		return nil, sdk.ResourceNotFoundError(req.Params.URI)
	case kind == atoll.ErrDenied || kind == atoll.ErrInvalid:
		return nil, invalidParamsf("%v", err)
	case err != nil:
		return nil, err
	}
	c := &sdk.ResourceContents{URI: req.Params.URI, MIMEType: mime.TypeByExtension(path.Ext(u.Path))}
	if utf8.Valid(data) {
		c.Text, c.MIMEType = string(data), cmp.Or(c.MIMEType, "text/plain; charset=utf-8")
	} else {
		c.Blob, c.MIMEType = data, cmp.Or(c.MIMEType, "application/octet-stream")
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{c}}, nil
}

// maxResource is the most bytes of a file that is read as a whole.
const maxResource = 1 << 20

// invalidParamsf returns an error of the client.
func invalidParamsf(format string, args ...any) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: atoll.Errorf("", "", atoll.ErrInvalid, format, args...).Error()}
}
