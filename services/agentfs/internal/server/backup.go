package server

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/fault"
	"humanwork.internal/services/agentfs/internal/store"
)

// exported is how much of an export one message carries.
const exported = 1 << 20

// CheckOrganization implements the contract.
func (s *Server) CheckOrganization(ctx context.Context, r *agentfsv1.CheckOrganizationRequest) (*agentfsv1.CheckOrganizationResponse, error) {
	report, err := s.check(ctx, r.GetOrganizationId(), false)
	if err != nil {
		return nil, err
	}
	out := &agentfsv1.CheckOrganizationResponse{}
	if r.GetRepair() && len(report.Faults) > 0 {
		kept, err := s.cfg.Store.CreateSnapshot(ctx, r.GetOrganizationId(), store.BeforeRepair())
		if err != nil {
			return nil, err
		}
		out.Snapshot = kept.Name
		if report, err = s.check(ctx, r.GetOrganizationId(), true); err != nil {
			return nil, err
		}
	}
	for _, f := range report.Faults {
		out.Faults = append(out.Faults, &agentfsv1.Fault{Kind: f.Kind, Message: f.Message, Repaired: f.Repaired})
	}
	out.Truncated, out.Inodes, out.Bytes, out.LedgerRecords = report.Truncated, report.Inodes, report.Bytes, report.LedgerRecords
	return out, nil
}

func (s *Server) check(ctx context.Context, organization string, repair bool) (report agentfs.Report, err error) {
	err = s.cfg.Store.Stream(ctx, organization, func(ctx context.Context, fs *agentfs.FS) error {
		report, err = fs.Check(ctx, repair)
		return fault.From(err, "the AgentFS")
	})
	return report, err
}

func toSnapshot(s store.Snapshot) *agentfsv1.Snapshot {
	return &agentfsv1.Snapshot{Name: s.Name, CreateTime: timestamppb.New(s.Created), Size: s.Size}
}

// CreateSnapshot implements the contract.
func (s *Server) CreateSnapshot(ctx context.Context, r *agentfsv1.CreateSnapshotRequest) (*agentfsv1.CreateSnapshotResponse, error) {
	made, err := s.cfg.Store.CreateSnapshot(ctx, r.GetOrganizationId(), r.GetName())
	if err != nil {
		return nil, err
	}
	return &agentfsv1.CreateSnapshotResponse{Snapshot: toSnapshot(made)}, nil
}

// ListSnapshots implements the contract.
func (s *Server) ListSnapshots(_ context.Context, r *agentfsv1.ListSnapshotsRequest) (*agentfsv1.ListSnapshotsResponse, error) {
	list, err := s.cfg.Store.ListSnapshots(r.GetOrganizationId())
	if err != nil {
		return nil, err
	}
	out := &agentfsv1.ListSnapshotsResponse{}
	for _, one := range list {
		out.Snapshots = append(out.Snapshots, toSnapshot(one))
	}
	return out, nil
}

// DeleteSnapshot implements the contract.
func (s *Server) DeleteSnapshot(_ context.Context, r *agentfsv1.DeleteSnapshotRequest) (*agentfsv1.DeleteSnapshotResponse, error) {
	if err := s.cfg.Store.DeleteSnapshot(r.GetOrganizationId(), r.GetName()); err != nil {
		return nil, err
	}
	return &agentfsv1.DeleteSnapshotResponse{}, nil
}

// ExportOrganization implements the contract.
func (s *Server) ExportOrganization(r *agentfsv1.ExportOrganizationRequest, stream grpc.ServerStreamingServer[agentfsv1.ExportOrganizationResponse]) error {
	leave, err := place(stream.Context(), s.downloads)
	if err != nil {
		return err
	}
	defer leave()
	f, err := s.cfg.Store.Export(stream.Context(), r.GetOrganizationId(), r.GetSnapshot())
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("look at the export: %w", err)
	}
	if err := stream.Send(&agentfsv1.ExportOrganizationResponse{Size: info.Size()}); err != nil {
		return err
	}
	for {
		data := make([]byte, exported)
		n, err := io.ReadFull(f, data)
		if n > 0 {
			s.cfg.Meter.Sent(n)
			if err := stream.Send(&agentfsv1.ExportOrganizationResponse{Data: data[:n]}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the export: %w", err)
		}
	}
}

// RestoreOrganization implements the contract.
func (s *Server) RestoreOrganization(stream grpc.ClientStreamingServer[agentfsv1.RestoreOrganizationRequest, agentfsv1.RestoreOrganizationResponse]) error {
	ctx := stream.Context()
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return invalid("the stream has no message")
	}
	if err != nil {
		return err
	}
	// A lost database has nothing else that says whose it was.
	if err := s.cfg.Authority.Organization(ctx, first.GetOrganizationId()); err != nil {
		return err
	}
	var previous store.Snapshot
	if first.GetSnapshot() != "" {
		if len(first.GetData()) > 0 {
			return invalid("a restore is of a snapshot or of data, not of both")
		}
		previous, err = s.cfg.Store.RestoreSnapshot(ctx, first.GetOrganizationId(), first.GetSnapshot())
	} else {
		previous, err = s.cfg.Store.Restore(ctx, first.GetOrganizationId(), func(w io.Writer) error {
			return s.receiveCopy(ctx, stream, first, w)
		})
	}
	if err != nil {
		return err
	}
	out := &agentfsv1.RestoreOrganizationResponse{}
	if previous.Name != "" {
		out.Previous = toSnapshot(previous)
	}
	return stream.SendAndClose(out)
}

// receiveCopy writes the stream's data to w until the client closes its side.
func (s *Server) receiveCopy(ctx context.Context, stream grpc.ClientStreamingServer[agentfsv1.RestoreOrganizationRequest, agentfsv1.RestoreOrganizationResponse],
	first *agentfsv1.RestoreOrganizationRequest, w io.Writer) error {
	// A client may wait for this before it sends what may be large.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	size := int64(0)
	write := func(data []byte) error {
		size += int64(len(data))
		s.cfg.Meter.Received(len(data))
		if _, err := w.Write(data); err != nil {
			return fmt.Errorf("write the copy: %w", err)
		}
		return nil
	}
	if err := write(first.GetData()); err != nil {
		return err
	}
	err := pump(ctx, s.cfg.Stall, stream.Recv, func(m *agentfsv1.RestoreOrganizationRequest) error {
		if m.GetOrganizationId() != first.GetOrganizationId() {
			return invalid("a message names another organization than the first one")
		}
		if m.GetSnapshot() != "" {
			return invalid("a message after the first one names a snapshot")
		}
		return write(m.GetData())
	})
	if err != nil {
		return err
	}
	if first.GetSize() >= 0 && first.GetSize() != size {
		return errs.New(errs.Invalid, fault.SizeMismatch, "%d bytes were announced, and %d came", first.GetSize(), size)
	}
	return nil
}
