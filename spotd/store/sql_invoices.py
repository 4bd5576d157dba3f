"""The part of SqlStore about invoices; see `spotd.store.invoice_records`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from spotd.store import data_transfers, invoices
from spotd.store.invoice_records import DataTransfer, StorageCost
from spotd.store.sql_images import SqlImages


class SqlInvoices(SqlImages, Protocol):
    """A part of `spotd.store.sql_store.SqlStore`, which has what it works on."""

    def job_users(self, job_ids: Collection[str]) -> dict[str, str]:
        return self._database.read(lambda c: invoices.job_users(c, job_ids))

    def event_keys(self, kind: str, since_us: int) -> set[str]:
        return self._database.read(lambda c: invoices.event_keys(c, kind, since_us))

    def record_invoiced(self, amounts: Mapping[int, int], at_us: int) -> None:
        self._write(lambda tx: invoices.record_invoiced(tx, amounts, at_us))

    def carriages(self, month_us: int = 0) -> list[StorageCost]:
        return self._database.read(lambda c: invoices.carriages(c, month_us))

    def record_removed(self, job_id: str, manifest: str, at_us: int) -> None:
        self._write(lambda tx: invoices.record_removed(tx, job_id, manifest, at_us))

    def shipments(self, job_id: str = "") -> list[DataTransfer]:
        return self._database.read(lambda c: data_transfers.shipments(c, job_id))

    def add_shipment(self, row: DataTransfer) -> None:
        self._write(lambda tx: data_transfers.add_shipment(tx, row))

    def end_shipment(self, job_id: str, url: str, at_us: int) -> None:
        self._write(lambda tx: data_transfers.end_shipment(tx, job_id, url, at_us))

    def record_carriage(self, row: StorageCost) -> None:
        self._write(lambda tx: invoices.record_carriage(tx, row))
