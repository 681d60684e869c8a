package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"

	"humanwork.internal/pkg/fileuri"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/gateway/internal/edge"
	"humanwork.internal/services/gateway/internal/entity"
	"humanwork.internal/services/gateway/internal/strictjson"
	"humanwork.internal/services/gateway/internal/wire"
)

// Bodies of the maintenance routes.
var (
	checkBody    = []strictjson.Field{{Name: "repair", Kind: strictjson.Bool}}
	snapshotBody = []strictjson.Field{{Name: "name", Kind: strictjson.String}}
)

var snapshotPattern = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

const (
	// maxRecords is the largest page of agentfs's.
	maxRecords = 1000
	// maxFilePageToken is what agentfs takes where a token holds a path.
	maxFilePageToken = 8192
	mediaSQLite      = "application/vnd.sqlite3"
)

// audit answers with records of the ledger.
func (s *Server) audit(w http.ResponseWriter, r *edge.Request) error {
	if err := checkPage(r, maxPageToken); err != nil {
		return err
	}
	if _, err := position(r, "after"); err != nil {
		return err
	}
	if len(r.Query.Get("path")) > fileuri.MaxPath {
		return edge.InvalidParameter("path", "is longer than %d bytes", fileuri.MaxPath)
	}
	return s.proxied(nil)(w, r)
}

// diff answers with what differs between two points of the ledger.
func (s *Server) diff(w http.ResponseWriter, r *edge.Request) error {
	size, err := pageSize(r, maxRecords)
	if err != nil {
		return err
	}
	if err := checkPage(r, maxFilePageToken); err != nil {
		return err
	}
	from, err := position(r, "from")
	if err != nil {
		return err
	}
	to, err := position(r, "to")
	if err != nil {
		return err
	}
	resp, err := s.records.DiffFiles(r.Context(), &agentfsv1.DiffFilesRequest{OrganizationId: r.IDs["organizationId"],
		ConversationId: r.IDs["conversationId"], From: from, To: to, PageSize: size, PageToken: r.Query.Get("pageToken")})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, wire.NewDiff(resp))
}

// position reads the parameter of that name; absent is 0.
func position(r *edge.Request, name string) (int64, error) {
	if !r.Query.Has(name) {
		return 0, nil
	}
	n, err := strconv.ParseUint(r.Query.Get(name), 10, 63)
	if err != nil {
		return 0, edge.InvalidParameter(name, "must be a position of the ledger, or 0")
	}
	return int64(n), nil
}

// checkPage checks the parameters of a page of agentfs's.
func checkPage(r *edge.Request, token int) error {
	if _, err := pageSize(r, maxRecords); err != nil {
		return err
	}
	if len(r.Query.Get("pageToken")) > token {
		return edge.InvalidParameter("pageToken", "is none of ours")
	}
	return nil
}

func (s *Server) deleteSnapshot(w http.ResponseWriter, r *edge.Request) error {
	if _, err := s.backup.DeleteSnapshot(r.Context(), &agentfsv1.DeleteSnapshotRequest{OrganizationId: r.IDs["organizationId"],
		Name: r.IDs["name"]}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// export streams a copy of an organization's AgentFS.
func (s *Server) export(w http.ResponseWriter, r *edge.Request) error {
	snapshot := r.Query.Get("snapshot")
	if r.Query.Has("snapshot") && !snapshotPattern.MatchString(snapshot) {
		return edge.InvalidParameter("snapshot", "must be 1 to 63 of a-z, 0-9 and -")
	}
	// The copy is made before its first byte is there.
	ctx, stall := newStall(r.Context(), s.cfg.Maintenance)
	defer stall.end()
	stream, err := s.backup.ExportOrganization(ctx, &agentfsv1.ExportOrganizationRequest{OrganizationId: r.IDs["organizationId"], Snapshot: snapshot})
	if err != nil {
		return err
	}
	var m *agentfsv1.ExportOrganizationResponse
	receive := func() error {
		return stall.during(func() error {
			m, err = stream.Recv()
			return err
		})
	}
	if err := receive(); err != nil {
		return early(err)
	}
	size, name := m.GetSize(), r.IDs["organizationId"]
	if snapshot != "" {
		name += "-" + snapshot
	}
	h := w.Header()
	h.Set("Content-Type", mediaSQLite)
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	h.Set("Content-Disposition", entity.Attachment(name+".db"))
	w.WriteHeader(http.StatusOK)
	for sent := int64(0); ; {
		err := receive()
		if sent == size && errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return early(err)
		}
		if sent += int64(len(m.GetData())); sent > size {
			return fmt.Errorf("export: agentfs sent more than the %d bytes it announced", size)
		}
		if _, err := w.Write(m.GetData()); err != nil {
			return fmt.Errorf("send an export: %w", err)
		}
	}
}
