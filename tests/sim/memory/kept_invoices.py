"""The part of MemoryStore about invoices; see `spotd.store.invoice_records`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spotd.store.invoice_records import DataTransfer, StorageCost
from tests.sim.memory import invoices
from tests.sim.memory.kept_images import MemoryImages


class MemoryInvoices(MemoryImages):
    """A part of `tests.sim.memory_store.MemoryStore`, which has what it works on."""

    def job_users(self, job_ids: Collection[str]) -> dict[str, str]:
        return invoices.job_users(self._here(), job_ids)

    def event_keys(self, kind: str, since_us: int) -> set[str]:
        return invoices.event_keys(self._here(), kind, since_us)

    def record_invoiced(self, amounts: Mapping[int, int], at_us: int) -> None:
        self._write(invoices.record_invoiced, amounts, at_us)

    def carriages(self, month_us: int = 0) -> list[StorageCost]:
        return invoices.carriages(self._here(), month_us)

    def record_removed(self, job_id: str, manifest: str, at_us: int) -> None:
        self._write(invoices.record_removed, job_id, manifest, at_us)

    def shipments(self, job_id: str = "") -> list[DataTransfer]:
        return invoices.shipments(self._here(), job_id)

    def add_shipment(self, row: DataTransfer) -> None:
        self._write(invoices.add_shipment, row)

    def end_shipment(self, job_id: str, url: str, at_us: int) -> None:
        self._write(invoices.end_shipment, job_id, url, at_us)

    def record_carriage(self, row: StorageCost) -> None:
        self._write(invoices.record_carriage, row)
